package lead

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/exclusive"
	"github.com/latchkit/latchkit/locker"
)

// ErrSteppedDown is the cause of a context whose process gave up the lead: see [Leader.StepDown].
var ErrSteppedDown = errors.New("this process has stepped down")

// A Term is the time for which one process leads.
type Term struct {
	// Fence is the number of the term: the fence of its lease. It is larger than the Fence of
	// every earlier term, except on a semaphore with several leaders. 0 only if the Locker has no
	// fences.
	Fence uint64
	Began time.Time
	// Ended is the time at which fn's context ended, or fn returned. It is zero while the term
	// lasts.
	Ended time.Time
	// Cause is the reason for the end of the term: [ErrSteppedDown], locker.ErrLost,
	// locker.ErrRevoked, locker.ErrExpired, locker.ErrClosed, or the cause of Run's ctx. Cause
	// is nil while the term lasts, and if fn returned before its context ended.
	Cause error
}

// term is a term of this process. It begins with the lease and lasts until fn has returned.
type term struct {
	leader   *Leader
	lease    *locker.Lease
	ctx      context.Context // the context of fn
	cancel   context.CancelCauseFunc
	observed func(locker.Outcome)
	returned chan struct{} // closed when fn has returned

	completed bool  // fn returned before its context ended
	err       error // what fn returned

	endOnce sync.Once // makes markEnded send its news only once, and before the news of the next term
	mu      sync.Mutex
	shown   Term // what callers outside this package see
}

// newTerm makes the term for a granted lease. ctx is the lease's context.
func (l *Leader) newTerm(ctx context.Context) *term {
	t := &term{leader: l, returned: make(chan struct{})}
	t.lease, _ = locker.FromContext(ctx)
	t.shown = Term{Fence: t.lease.Fence(), Began: time.Now()}
	ctx, t.observed = t.lease.Observe(ctx, opLead)
	t.ctx, t.cancel = exclusive.WithCancelCause(ctx, ctx)
	return t
}

// run runs fn for one term.
func (t *term) run(fn func(context.Context) error) error {
	l := t.leader
	l.mu.Lock()
	l.term = t
	l.mu.Unlock()
	l.cfg.logger.Info("latchkit: this process leads", "key", l.rule.Key, "process", l.rule.Metadata, "fence", t.lease.Fence())
	l.announce(t.snapshot())
	l.background.Add(1)
	watched := context.AfterFunc(t.ctx, func() {
		defer l.background.Done()
		t.markEnded()
		t.watch()
	})
	if l.longest > 0 {
		rotation := time.AfterFunc(l.longest, func() { t.cancel(t.wrap(locker.ErrExpired)) })
		defer rotation.Stop()
	}
	defer func() { // deferred, because fn may panic or call runtime.Goexit
		if watched() {
			l.background.Done()
		}
		close(t.returned)
		t.markEnded()
		t.cancel(nil)
		t.observed(t.outcome())
	}()
	t.err = fn(t.ctx)
	t.completed = t.ctx.Err() == nil
	return t.err
}

// markEnded marks the term as ended. It is called when fn's context has ended and when fn has
// returned, and only the first call has an effect.
func (t *term) markEnded() {
	t.endOnce.Do(func() {
		t.mu.Lock()
		t.shown.Ended, t.shown.Cause = time.Now(), context.Cause(t.ctx)
		t.mu.Unlock()
		l, news := t.leader, t.snapshot()
		l.cfg.logger.Info("latchkit: this process leads no longer", "key", l.rule.Key, "process", l.rule.Metadata, "fence", news.Fence, "cause", news.Cause)
		l.announce(news)
	})
}

// watch reports, in the log and to the Observer, that fn has not returned after the end of its term:
// after the time of WithGrace, and again every TTL.
func (t *term) watch() {
	l := t.leader
	timer := time.NewTimer(l.cfg.grace)
	defer timer.Stop()
	for {
		select {
		case <-t.returned:
			return
		case <-timer.C:
		}
		term := t.snapshot()
		l.cfg.logger.Error("latchkit: the leader's function still runs although its term is over", "key", l.rule.Key,
			"fence", term.Fence, "late", time.Since(term.Ended), "held", time.Now().Before(t.lease.Expires()), "cause", term.Cause)
		_, end := t.lease.Observe(t.ctx, opOverrun)
		end(locker.Outcome{Result: resultOverrun, Err: term.Cause})
		timer.Reset(l.rule.TTL)
	}
}

// isOver reports whether the term has ended, so that this process leads no longer.
func (t *term) isOver() bool { return t.ctx.Err() != nil || !t.snapshot().Ended.IsZero() }

// snapshot returns the present state of the term.
func (t *term) snapshot() Term {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shown
}

// ownError returns the error of fn, or nil if that error only says that the term or the ctx of Run
// has ended. The term t may be nil.
func (t *term) ownError(ctx context.Context) error {
	if t == nil {
		return nil
	}
	for _, ended := range []context.Context{t.ctx, ctx} {
		if errors.Is(t.err, ended.Err()) || errors.Is(t.err, context.Cause(ended)) {
			return nil
		}
	}
	return t.err
}

func (t *term) wrap(err error) error {
	return &locker.Error{Op: opLead, Key: t.leader.rule.Key, Err: err}
}

// The operations that Observers see, and their own results.
const (
	opLead            locker.Op     = "lead"         // a term, until its function has returned
	opOverrun         locker.Op     = "overrun"      // the function still runs after its term
	resultSteppedDown locker.Result = "stepped_down" // opLead: this process gave up the lead
	resultOverrun     locker.Result = "overrun"      // opOverrun: the function has not returned in time
)

// outcome returns the outcome of the term for the Locker's Observer.
func (t *term) outcome() locker.Outcome {
	o := locker.Outcome{Result: locker.ResultReleased, Err: t.err}
	cause := t.snapshot().Cause
	for _, c := range []struct {
		target error
		result locker.Result
	}{
		{ErrSteppedDown, resultSteppedDown},
		{locker.ErrRevoked, locker.ResultRevoked}, // before ErrLost, because a revocation is also a loss
		{locker.ErrLost, locker.ResultLost},
		{locker.ErrExpired, locker.ResultExpired},
	} {
		if errors.Is(cause, c.target) {
			o.Result, o.Err = c.result, cause
			break
		}
	}
	return o
}
