// Package calls begins the steps of a Store, each with one [Future] for its answer, and repeats the
// releases for which no caller waits. It knows package store, and no server. Package link, which
// sends calls to Redis nodes, is above it, and uses its goroutines.
package calls

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// Steps begins the steps of a Store, so that no caller must wait for the answer. latchkit's own
// Stores on Redis are Steps. [Wrap] makes Steps from every other Store. Steps uses only the values
// of ctx.
type Steps interface {
	// Begin begins one step for the claim c. If onAnswer is not nil, it receives the answer, on any
	// goroutine, perhaps before Begin returns, and must not block.
	Begin(ctx context.Context, step Step, c store.Claim, onAnswer func(store.Grant, error)) *Future

	// BeginRenew renews leases. As replies come, it calls the function onAnswer, each time for a
	// part of cs. Each lease is in exactly one of these parts. The parameter places has the indices
	// in cs of the answered leases, and grants has an answer or an error for each of them. Several
	// goroutines call onAnswer, which must not block, and must not keep grants.
	BeginRenew(ctx context.Context, cs []*store.Claim, onAnswer func(places []int, grants []store.Grant))

	// Repeat repeats the attempt of ch until it is answered or useless.
	Repeat(ch Chore)

	// Close waits until no step and no chore is under way, or until ctx ends.
	Close(ctx context.Context) error
}

// A Step names a step of a Store.
type Step uint8

// The steps.
const (
	Acquire Step = iota
	Release
	// Undo is one attempt of a release that is repeated. Other steps are sent before it.
	Undo
)

// Await waits for the answer to f, and returns it.
func Await(f *Future) (store.Grant, error) {
	<-f.Answered()
	return f.Answer()
}

// wrapped begins the steps of a Store that has no Steps. Each step begins on a goroutine of the
// Pool, because a user's Store may block.
type wrapped struct {
	store  store.Store
	close  func(context.Context) error // may be nil
	pool   *Pool
	chores Chores
}

// Wrap returns the Steps of s. The steps run on goroutines of p. The function onClose is called at
// the end of Close; it may be nil. The function warn receives the refusals that end an undo.
func Wrap(s store.Store, onClose func(context.Context) error, p *Pool, warn func(error)) Steps {
	return &wrapped{store: s, close: onClose, pool: p, chores: Chores{Warn: warn}}
}

// Begin calls the Store's Acquire or Release.
func (w *wrapped) Begin(ctx context.Context, step Step, c store.Claim, onAnswer func(store.Grant, error)) *Future {
	f := &Future{onAnswer: onAnswer}
	if step != Undo { // an undo is made though other steps hang
		var ok bool
		if f, ok = w.pool.Future(onAnswer); !ok {
			return f
		}
	}
	// The caller may leave while another one takes the answer, which must not be that the first one left.
	ctx = context.WithoutCancel(ctx)
	w.pool.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, Timeout)
		defer cancel()
		if step == Undo { // no caller waits, so the attempt itself must end when the Store hangs
			defer time.AfterFunc(Timeout, func() { f.Deliver(store.Grant{}, errNoAnswer) }).Stop()
		}
		if step == Acquire {
			f.Deliver(w.store.Acquire(ctx, c))
		} else {
			f.Deliver(w.store.Release(ctx, c))
		}
	})
	return f
}

var errNoAnswer = errors.New("no answer in time")

// Repeat repeats the attempt of ch until it is answered or useless.
func (w *wrapped) Repeat(ch Chore) { w.chores.Add(ch) }

// Close waits until all undos are confirmed, and then closes the Store.
func (w *wrapped) Close(ctx context.Context) error {
	err := w.chores.Stop(ctx)
	if w.close != nil {
		err = errors.Join(err, w.close(ctx))
	}
	return err
}

// mostRenewed is the largest number of claims in one call of Renew.
const mostRenewed = 100

// BeginRenew calls the Store's Renew for parts of cs with at most mostRenewed claims each, on
// goroutines of the Pool.
func (w *wrapped) BeginRenew(ctx context.Context, cs []*store.Claim, onAnswer func([]int, []store.Grant)) {
	for from := 0; from < len(cs); from += mostRenewed {
		part := make([]store.Claim, 0, mostRenewed)
		places := make([]int, 0, mostRenewed)
		for i := from; i < min(from+mostRenewed, len(cs)); i++ {
			part, places = append(part, *cs[i]), append(places, i)
		}
		end := func(answers []store.Grant, err error) {
			if err == nil && len(answers) != len(part) {
				err = errors.New("the Store's Renew did not return one answer for each claim")
			}
			if err != nil {
				answers = slices.Repeat([]store.Grant{{Err: err}}, len(part))
			}
			onAnswer(places, answers)
		}
		if w.pool.hanging.Add(1) > mostRenewing {
			w.pool.hanging.Add(-1)
			end(nil, errHanging)
			continue
		}
		w.pool.Do(func() {
			defer w.pool.hanging.Add(-1)
			ctx, cancel := context.WithTimeout(ctx, Timeout)
			defer cancel()
			end(w.store.Renew(ctx, part))
		})
	}
}
