package calls

import (
	"context"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// A Question is a step of a Store that is under way. The caller that has begun the step waits for
// the answer. Then this caller either takes the answer or abandons the question, and does not use
// the question again.
//
//	q := steps.BeginRelease(ctx, claim)
//	select {
//	case <-q.Answered():
//		grant, err := q.Answer()
//	case <-over:
//		q.Abandon()
//	}
type Question interface {
	Answered() <-chan struct{} // is signalled once
	Answer() (store.Grant, error)
	Abandon() (sent bool) // sent is true if the server may execute the step, or has executed it
}

// Steps begins the steps of a Store, so that callers can leave before the answer arrives. Steps
// uses only the values of ctx.
type Steps interface {
	BeginAcquire(ctx context.Context, c store.Claim) Question
	BeginRelease(ctx context.Context, c store.Claim) Question

	// BeginRenew renews leases. As replies come, it calls the function onAnswer, each time for a
	// part of cs. Each lease is in exactly one of these parts. The parameter places has the indices
	// in cs of the answered leases. At these indices, the parameter grants has an answer or an
	// error. Several goroutines call onAnswer, which must not block.
	BeginRenew(ctx context.Context, cs []store.Claim, onAnswer func(places []int, grants []store.Grant))

	// Undo repeats a release until it is confirmed or useless.
	Undo(ch Chore)
}

// Releases are Steps that can send a release for which no caller waits.
type Releases interface {
	// Prompt reports whether the last replies of the key's server came soon after their requests.
	Prompt(key string) bool

	// ReleaseBeside releases a lease, and no caller waits for the answer. If recall returns true,
	// the release was not sent and never will be. Otherwise ReleaseBeside calls the function
	// onAnswer once, with the answer. The function onAnswer must not block.
	ReleaseBeside(ctx context.Context, c store.Claim, when When, onAnswer func(store.Grant, error)) (recall func() bool)
}

// When states how soon a release is sent for which no caller waits.
type When uint8

const (
	// WithOthers sends the release together with the next calls to the server, or alone 1 ms
	// later.
	WithOthers When = iota
	// Soon sends the release with the next flight.
	Soon
	// AtOnce sends the release as if a caller waited for it. The answer may come before the call
	// returns.
	AtOnce
)

// A Starter is a Store that can begin a step without making its caller wait. It calls the function
// onAnswer once, on any goroutine, perhaps before the Starter's method returns. The function
// onAnswer must not block.
type Starter interface {
	StartAcquire(ctx context.Context, c store.Claim, onAnswer func(store.Grant, error))
	StartRelease(ctx context.Context, c store.Claim, onAnswer func(store.Grant, error))

	// Prompt reports whether the last replies of all servers came soon after their requests.
	Prompt(key string) bool
}

// Start is the method StartAcquire or StartRelease of a Starter.
type Start func(ctx context.Context, c store.Claim, onAnswer func(store.Grant, error))

// Await calls the function start for the claim c, waits for the answer of the step, and returns it.
func Await(ctx context.Context, c store.Claim, start Start) (g store.Grant, err error) {
	done := make(chan struct{})
	start(ctx, c, func(answer store.Grant, failed error) {
		g, err = answer, failed
		close(done)
	})
	<-done
	return g, err
}

// A Chore is a release for which no caller waits. The release is repeated until it is answered or
// useless.
type Chore struct {
	Claim   store.Claim
	Keep    time.Time // the time until which KeepFor keeps the key; zero: KeepFor is not set
	Useless time.Time // from this time on, the release has no effect
}

// At returns the claim for a release that is sent at the time now.
func (ch *Chore) At(now time.Time) store.Claim {
	claim := ch.Claim
	if !ch.Keep.IsZero() {
		claim.KeepFor = max(0, ch.Keep.Sub(now))
	}
	return claim
}
