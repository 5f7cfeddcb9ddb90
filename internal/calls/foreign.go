package calls

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/locker/store"
)

// Foreign begins the steps of any Store. Each step of such a Store begins on a separate goroutine,
// because a user's Store may block. The steps of a [Starter] need no goroutine.
type Foreign struct {
	pool    *Pool
	starter Starter // the pool's Store, or nil
	chores  link.Chores
	renews  atomic.Int32 // the number of calls of the Store's method Renew that are under way
}

var _ Steps = (*Foreign)(nil)

// NewForeign returns a Foreign that begins the steps of the Store of p. The function warn receives
// the refusals that end an undo.
func NewForeign(p *Pool, warn func(error)) *Foreign {
	f := &Foreign{pool: p, chores: link.Chores{Warn: warn}}
	f.starter, _ = p.Store.(Starter)
	return f
}

// GivesUp reports whether the Store ends a step by itself when its servers do not answer.
func (f *Foreign) GivesUp() bool { return f.starter != nil }

// mostHanging is the largest number of abandoned calls to a Store that may be under way, and the
// largest number of calls of its Renew that may be under way.
const mostHanging = 64

var errHanging = &store.Refusal{Temporary: true, Err: errors.New("too many calls of the Store hang; the call was not made")}

// BeginAcquire begins a call of the Store's Acquire, and returns it as a Question.
func (f *Foreign) BeginAcquire(ctx context.Context, c store.Claim) Question {
	if f.starter != nil {
		return f.pool.start(ctx, c, f.starter.StartAcquire)
	}
	limit := time.Now().Add(Timeout)
	if end, ok := ctx.Deadline(); !ok || limit.Before(end) {
		ctx = Until(ctx, limit)
	}
	return f.pool.Begin(ctx, store.Store.Acquire, c)
}

// BeginRelease begins a call of the Store's Release, and returns it as a Question.
func (f *Foreign) BeginRelease(ctx context.Context, c store.Claim) Question {
	if f.starter != nil {
		return f.pool.start(ctx, c, f.starter.StartRelease)
	}
	return f.pool.Begin(Until(ctx, time.Now().Add(Timeout)), store.Store.Release, c)
}

// Releases returns an object that sends releases for which no caller waits, or nil when each
// release would need a goroutine.
func (f *Foreign) Releases() Releases {
	if f.starter == nil {
		return nil
	}
	return releaseSender{f.starter}
}

// releaseSender sends each release at once. A delayed release would have to be recallable, but
// calls to several servers cannot be recalled together.
type releaseSender struct{ Starter }

// ReleaseBeside starts the release of c at once, and onAnswer receives the answer. The returned
// function recall always returns false, because the release was sent.
func (l releaseSender) ReleaseBeside(ctx context.Context, c store.Claim, _ When, onAnswer func(store.Grant, error)) (recall func() bool) {
	l.StartRelease(ctx, c, onAnswer)
	return func() bool { return false }
}

// mostRenewed is the largest number of claims in one call of Renew.
const mostRenewed = 100

// BeginRenew calls the Store's Renew for parts of cs with at most mostRenewed claims each. The
// function onAnswer receives the answer to each part.
func (f *Foreign) BeginRenew(ctx context.Context, cs []store.Claim, onAnswer func([]int, []store.Grant)) {
	for from := 0; from < len(cs); from += mostRenewed {
		to := min(from+mostRenewed, len(cs))
		places := make([]int, 0, to-from)
		for i := from; i < to; i++ {
			places = append(places, i)
		}
		grants := make([]store.Grant, len(cs))
		if f.renews.Add(1) > mostHanging {
			f.renews.Add(-1)
			failAll(grants, errHanging)
			onAnswer(places, grants)
			continue
		}
		f.pool.Do(func() {
			defer f.renews.Add(-1)
			ctx, cancel := context.WithTimeout(ctx, Timeout)
			defer cancel()
			answers, err := f.pool.Store.Renew(ctx, cs[from:to])
			switch {
			case err != nil:
				failAll(grants, err)
			case len(answers) != to-from:
				failAll(grants, errors.New("the Store's Renew did not return one answer for each claim"))
			default:
				copy(grants[from:], answers)
			}
			onAnswer(places, grants)
		})
	}
}

func failAll(grants []store.Grant, err error) {
	for i := range grants {
		grants[i] = store.Grant{Err: err}
	}
}

// Undo repeats the release of ch until it is confirmed.
func (f *Foreign) Undo(ch Chore) {
	f.chores.Add(Attempts(ch, func(c store.Claim, onAnswer func(store.Grant, error)) {
		var once sync.Once
		answer := func(g store.Grant, err error) { once.Do(func() { onAnswer(g, err) }) }
		overdue := time.AfterFunc(Timeout, func() { answer(store.Grant{}, link.ErrNoAnswer) })
		f.pool.Do(func() {
			defer overdue.Stop()
			ctx, cancel := context.WithTimeout(context.Background(), Timeout)
			defer cancel()
			answer(f.pool.Store.Release(ctx, c))
		})
	}))
}

// Close waits until all undos are confirmed, or until ctx ends.
func (f *Foreign) Close(ctx context.Context) error { return f.chores.Stop(ctx) }

// Attempts turns ch into a link.Chore. Each attempt calls the function release with the claim to
// release, and ends when release has called onAnswer.
func Attempts(ch Chore, release func(c store.Claim, onAnswer func(store.Grant, error))) link.Chore {
	return link.Chore{Useless: ch.Useless, Try: func(done func(link.Outcome, error)) {
		release(ch.At(time.Now()), func(_ store.Grant, err error) { done(OutcomeOf(err), err) })
	}}
}

// OutcomeOf returns the outcome of an attempt that ended with err.
func OutcomeOf(err error) link.Outcome {
	refused, ok := errtype.As[*store.Refusal](err)
	switch {
	case err == nil:
		return link.Answered
	case !ok:
		return link.Unanswered
	case refused.Temporary:
		return link.NotNow
	}
	return link.Never
}
