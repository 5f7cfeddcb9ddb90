package locker

import (
	"context"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker/store"
)

// releaseWithin bounds how long Release and Complete keep their caller while the server does not answer.
const releaseWithin = 2 * time.Second

// Release gives the lock up: to the next caller of this process, or to the server, which hands it to whoever waits there.
// Call it once the work is done, whatever became of ctx: only ctx's values are used, its cancellation is not. Called again
// it returns what the first call returned: nil after a release. It takes at most 2 s; when the server has not answered by
// then the release goes on in the background until it is confirmed or the lease has run out.
//
// Errors: ErrLost, ErrRevoked or ErrExpired when the lease had ended before; ErrUnavailable when there is no answer.
func (l *Lease) Release(ctx context.Context) error { return l.release(ctx, false) }

// Complete is Release after success: with Rule.Once, the same step on the server remembers that the work is done. Without
// Once it is Release.
func (l *Lease) Complete(ctx context.Context) error { return l.release(ctx, true) }

func (l *Lease) release(ctx context.Context, complete bool) error {
	if !l.beginRelease() {
		return l.released
	}
	defer l.endRelease()

	ctx, end := l.config().observe(context.WithoutCancel(ctx), OpRelease, l.rule)
	calls := 0
	if err := l.giveUp(ctx, complete, &calls); err != nil {
		l.released = l.wrap(OpRelease, err)
	}
	if end != nil {
		o := l.outcome(OpRelease, l.released)
		o.Calls = calls
		end(o)
	}
	return l.released
}

// giveUp ends the Lease in the ordinary way, or says how it had ended before.
func (l *Lease) giveUp(ctx context.Context, complete bool, calls *int) (err error) {
	switch {
	case l.part != nil:
		err = l.part.giveUpPart(ctx, l, complete, calls)
	case l.end(ErrReleased):
		err = l.pass(ctx, complete && l.rule.Once > 0, calls)
	default:
		err = l.ended()
	}
	if endedEarly(err) {
		l.tell(err)
	} else {
		l.tell(nil) // also when the release is not answered yet: the hold ended in the ordinary way
	}
	return err
}

// beginRelease is true for the first to call it. For all others it returns when the release has ended.
func (l *Lease) beginRelease() bool {
	l.mu.Lock()
	if !l.releasing {
		l.releasing = true
		l.mu.Unlock()
		return true
	}
	if l.done {
		l.mu.Unlock()
		return false
	}
	if l.waiters == nil {
		l.waiters = make(chan struct{})
	}
	ended := l.waiters
	l.mu.Unlock()
	<-ended // bounded by releaseWithin
	return false
}

func (l *Lease) endRelease() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = true
	if l.waiters != nil {
		close(l.waiters)
	}
}

// pass passes the hold on to the next caller of this process, or releases it at the server.
func (l *Lease) pass(ctx context.Context, complete bool, calls *int) error {
	e, h := l.engine, l.hold
	now := time.Now()
	e.times.held(l.rule.Name, now.Sub(l.began))
	passed, rest := e.cohorts.release(h)
	if passed {
		e.keeper.leave(h, l)
		return nil
	}
	deadline, longest := e.keeper.remove(h)
	defer e.post.forget(h) // while it is being released, a late message about it is no news

	timer := e.timers.Start(releaseWithin)
	defer e.timers.Stop(timer)
	r := releasing{engine: e, ctx: ctx, chore: h.chore(longest), deadline: deadline, over: timer.C, last: errNoAnswer}
	if complete {
		r.chore.Claim.Complete, r.chore.Claim.Once = true, l.rule.Once
	}
	if rest != nil && e.asksWithRelease(h.claim.Key) {
		if next := e.cohorts.lead(rest); next != nil {
			r.next = newFollow(next, now)
		}
		rest = nil
	}
	err := r.run()
	if rest != nil {
		e.cohorts.released(rest) // not before the key is free
	}
	*calls = r.calls
	return err
}

// releasing repeats a release until it is answered. The answers, and what they mean:
//
//	released                      nil
//	not ours, an earlier attempt of this release being unclear and sent within the lease   that attempt did it: nil; with
//	                              Once, only if the done mark is there
//	not ours otherwise            somebody else has it, or the server forgot it: ErrLost
//	revoked                       ErrRevoked
//	refused for good, or no answer within releaseWithin   ErrUnavailable; the cleaner goes on
type releasing struct {
	engine   *Engine
	ctx      context.Context
	chore    calls.Chore
	deadline instant
	over     <-chan time.Time // releaseWithin has passed
	next     *follow          // goes out with the first attempt, and with no other: see follow

	calls   int
	earlier bool  // an attempt within the lease is unclear
	last    error // of the last attempt
}

func (r *releasing) run() error {
	if answered, err := r.attempt(); answered {
		return err
	}
	for pause := range calls.BetweenRepeats {
		select {
		case <-time.After(pause):
		case <-r.over:
			return r.leaveToCleaner()
		}
		if answered, err := r.attempt(); answered {
			return err
		}
	}
	return nil // BetweenRepeats has no end
}

// attempt makes one attempt. Not answered means: again.
func (r *releasing) attempt() (answered bool, err error) {
	sent := time.Now()
	claim := r.chore.At(sent)
	next := r.next
	if r.next = nil; next != nil {
		claim.Next = &next.claim
	}
	r.calls++
	q := r.engine.steps.BeginRelease(r.ctx, claim)
	select {
	case <-q.Answered():
		g, err := q.Answer()
		if next != nil {
			next.hear(g, err)
		}
		if err != nil {
			return r.handleError(err, sent)
		}
		switch {
		case g.State == store.Released, r.earlier && (g.State == store.Done || g.State == store.NotOurs && !claim.Complete):
			return true, nil
		case g.State == store.Revoked:
			return true, revokedBecause(g.Reason)
		}
		return true, fmt.Errorf("%w: the server says it is not ours", ErrLost)
	case <-r.over:
		q.Abandon()
		if next != nil {
			next.hear(store.Grant{}, errNoAnswer)
		}
		return true, r.leaveToCleaner()
	}
}

func (r *releasing) handleError(err error, sent time.Time) (answered bool, _ error) {
	r.last = err
	if no, ok := errtype.As[*store.Refusal](err); !ok {
		r.earlier = r.earlier || instantOf(sent) < r.deadline
	} else if !no.Temporary {
		return true, r.leaveToCleaner()
	}
	return false, nil
}

// leaveToCleaner leaves the rest to the cleaner.
func (r *releasing) leaveToCleaner() error {
	r.engine.steps.Undo(r.chore)
	return unavailable(r.last)
}
