package calls

import (
	"context"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// A Question is a step of a Store that is under way. Whoever has begun it waits until it is
// answered, and then either takes the answer or abandons the question; after that the question is
// not theirs.
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
	Abandon() (sent bool) // sent: the server may execute it, or has
}

// Steps begins the steps of a Store, so that their callers can leave. Of ctx only the values count.
type Steps interface {
	BeginAcquire(ctx context.Context, c store.Claim) Question
	BeginRelease(ctx context.Context, c store.Claim) Question

	// BeginRenew renews leases. told is called for parts of them, once for each lease, as answers
	// come: places are those of the part in cs, and grants has an answer or an error at these
	// places. It is called by several goroutines, and must not wait for anything.
	BeginRenew(ctx context.Context, cs []store.Claim, told func(places []int, grants []store.Grant))

	// Undo repeats a release until it is confirmed or useless.
	Undo(ch Chore)
}

// Releases are Steps that can make a release that nobody waits for.
type Releases interface {
	// Prompt reports whether the server of a key has lately answered soon.
	Prompt(key string) bool

	// ReleaseBeside releases a lease. told is called once with the answer, unless recall has
	// returned true: then the release was not sent, and never will be. told must not wait for
	// anything.
	ReleaseBeside(ctx context.Context, c store.Claim, when When, told func(store.Grant, error)) (recall func() bool)
}

// When says when a release is sent that nobody waits for.
type When uint8

const (
	// WithOthers: together with the next calls to the server, or 1 ms later by itself.
	WithOthers When = iota
	// Soon: with the next flight.
	Soon
	// AtOnce: as a release that somebody waits for. The answer may be there at once.
	AtOnce
)

// Joins begins the questions of a store.Joiner.
type Joins interface {
	// BeginJoin is Join. told is called once, and must not wait for anything.
	BeginJoin(ctx context.Context, c store.Claim, told func(store.Grant, error))
}

// A Chore is a release that nobody waits for. It is repeated until it is answered or useless.
type Chore struct {
	Claim   store.Claim
	Keep    time.Time // Rule.AtLeast holds until then; zero: no AtLeast
	Useless time.Time // from then on nothing is left to release
}

// At is the claim of a release that is sent at that time.
func (ch *Chore) At(now time.Time) store.Claim {
	claim := ch.Claim
	if !ch.Keep.IsZero() {
		claim.KeepFor = max(0, ch.Keep.Sub(now))
	}
	return claim
}
