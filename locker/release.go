package locker

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// releaseWithin bounds how long Release and Complete keep their caller while the server does not answer.
const releaseWithin = 2 * time.Second

// betweenRepeats are the pauses between repetitions of a release or an extension.
var betweenRepeats = Jitter(Exponential(10*time.Millisecond, 500*time.Millisecond))

// Release gives the lock up. Call it once the work is done, whatever became of ctx: only ctx's values are used, its
// cancellation is not. It may be called again, which returns nil too. It takes at most 2 s; when the server has not
// answered by then the release goes on in the background until it is confirmed or the lease has run out.
//
// Errors: ErrLost, ErrRevoked or ErrExpired when the lease had ended before; ErrUnavailable when there is no answer.
func (l *Lease) Release(ctx context.Context) error { return l.release(ctx, false) }

// Complete is Release after success: with Rule.Once, the same step on the server remembers that the work is done. Without
// Once it is Release.
func (l *Lease) Complete(ctx context.Context) error { return l.release(ctx, true) }

func (l *Lease) release(ctx context.Context, complete bool) error {
	l.mu.Lock()
	if l.releasing != nil {
		l.mu.Unlock()
		<-l.releasing // bounded by releaseWithin
		return l.released
	}
	l.releasing = make(chan struct{})
	l.mu.Unlock()
	defer close(l.releasing)

	ctx, end := l.engine.cfg.begin(context.WithoutCancel(ctx), OpRelease, l.rule)
	calls := 0
	var err error
	if l.end(ErrReleased) {
		err = l.send(ctx, complete && l.rule.Once > 0, &calls)
	} else {
		err = l.ended()
	}
	if endedEarly(err) {
		l.tell(err)
	} else {
		l.tell(nil) // also when the release is not answered yet: the hold ended in the ordinary way
	}
	if err != nil {
		l.released = l.wrap(OpRelease, err)
	}
	if end != nil {
		o := l.outcome(OpRelease, l.released)
		o.Calls = calls
		end(o)
	}
	return l.released
}

// send repeats the release until it is answered. Its answers, and what they mean:
//
//	released                      nil
//	not ours, an earlier attempt of this release being unclear and sent within the lease   that attempt did it: nil
//	not ours otherwise            somebody else has it, or the server forgot it: ErrLost
//	revoked                       ErrRevoked
//	refused for good, or no answer within releaseWithin   ErrUnavailable; the cleaner goes on
func (l *Lease) send(ctx context.Context, complete bool, calls *int) error {
	e := l.engine
	ctx, cancel := context.WithTimeout(ctx, releaseWithin)
	defer cancel()
	deadline := l.Expires()
	ch := l.chore()
	claim := &ch.claim
	if complete {
		claim.Complete, claim.Once = true, l.rule.Once
	}
	earlier := false
	last := errors.New("no answer")
	for pause := range betweenRepeats {
		sent := time.Now()
		within := sent.Before(deadline)
		if !ch.keep.IsZero() {
			claim.Keep = max(0, ch.keep.Sub(sent))
		}
		attempt := *claim
		*calls++
		select {
		case r := <-ask(&e.calls, func() (Grant, error) { return e.store.Release(ctx, attempt) }):
			var no *Refusal
			switch {
			case r.err == nil && r.value.State == Released, r.err == nil && r.value.State == NotOurs && earlier:
				return nil
			case r.err == nil && r.value.State == Revoked:
				return revokedBecause(r.value.Reason)
			case r.err == nil:
				return fmt.Errorf("%w: the server says it is not ours", ErrLost)
			case errors.As(r.err, &no) && !no.Temporary:
				e.cleaner.add(ch)
				return unavailable(r.err)
			case !errors.As(r.err, &no):
				earlier = earlier || within
			}
			last = r.err
		case <-ctx.Done():
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			e.cleaner.add(ch)
			return unavailable(last)
		}
	}
	return nil // betweenRepeats has no end
}

// chore is the release of this lease, as the cleaner would do it.
func (l *Lease) chore() chore {
	claim := Claim{
		Key: l.engine.cfg.prefix + l.rule.Key, Owner: l.token, Mode: l.rule.Mode,
		Undo: undoFor(l.unclear, l.rule.lease()),
	}
	ch := chore{claim: claim, useless: time.Now().Add(max(l.engine.keeper.longestOf(l), claim.Undo))}
	if l.rule.AtLeast > 0 {
		ch.keep = l.granted.Add(l.rule.AtLeast)
	}
	return ch
}
