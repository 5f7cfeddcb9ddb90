package lead

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/self"
	"github.com/latchkit/latchkit/locker"
)

// DefaultTTL is the TTL of a term when the Rule has none. When a leader dies, another process
// leads after this time.
const DefaultTTL = 10 * time.Second

// Run runs fn while this process leads, with a new [Leader]. See [Leader.Run].
//
//	err := lead.Run(ctx, l, locker.Rule{Key: "leader:outbox"}, func(ctx context.Context) error { … })
//
// A candidate waits until ctx ends. Nobody is refused: while Redis does not answer, Run tries
// again.
func Run(ctx context.Context, l locker.Locker, rule locker.Rule, fn func(ctx context.Context) error, opts ...Option) error {
	leader, err := New(l, rule, opts...)
	if err != nil {
		return err
	}
	return leader.Run(ctx, fn)
}

// A Leader represents this process in the election: as a candidate, and as the leader when its turn
// comes. Its methods are safe for concurrent use, but its zero value is not usable. Run can be
// called once for each Leader.
type Leader struct {
	locker  locker.Locker
	rule    locker.Rule   // the rule that the Locker gets
	longest time.Duration // the longest time of a term; 0: no limit
	cfg     config

	background sync.WaitGroup // the goroutines that report when fn runs beyond its term

	mu      sync.Mutex
	started bool
	term    *term // the last term; nil before the first
	terms   chan Term
}

// New returns a Leader for the key of rule. Processes with the same key, on the same server, elect
// one leader. With a Locker of locker.NewSemaphore for n permits, the processes elect n leaders.
//
// The fields of rule: TTL is [DefaultTTL] if it is not set. Metadata identifies the leader for
// other processes; the default is PROGRAM@HOST:PID, as with locker.WithMetadata. EndAfter is the
// longest term. When EndAfter is over, the context of fn ends. The lease continues for the time of
// [WithGrace], so that fn can return before the lease ends. Then the process waits again, behind
// all other candidates. Wait and OnceFor must not be set. A Locker without fences elects leaders as
// well, but their terms have no numbers.
//
// Errors: ErrInvalidKey, ErrInvalidRule, ErrUnsupported, in a *locker.Error.
func New(l locker.Locker, rule locker.Rule, opts ...Option) (*Leader, error) {
	refuse := func(err error) (*Leader, error) {
		return nil, &locker.Error{Op: opLead, Key: rule.Key, Err: err}
	}
	switch {
	case rule.Wait != 0:
		return refuse(fmt.Errorf("%w: Wait is %v; leave it out, because a candidate waits until it leads", locker.ErrInvalidRule, rule.Wait))
	case rule.OnceFor != 0:
		return refuse(fmt.Errorf("%w: OnceFor is %v; leave it out, because the job of a leader is done when its function returns", locker.ErrInvalidRule, rule.OnceFor))
	case rule.Mode != locker.Exclusive:
		return refuse(fmt.Errorf("%w: the Mode is %v; leave it out, because a leader shares its key with no other process", locker.ErrInvalidRule, rule.Mode))
	}
	if rule.TTL == 0 {
		rule.TTL = DefaultTTL
	}
	if err := locker.Check(l, rule); err != nil {
		return refuse(err)
	}
	cfg, err := configure(opts, rule.TTL)
	if err != nil {
		return refuse(err)
	}
	leader := &Leader{locker: l, rule: rule, longest: rule.EndAfter, cfg: cfg, terms: make(chan Term, 1)}
	if rule.EndAfter != 0 {
		leader.rule.EndAfter += cfg.grace // the time for fn to return, in which no other process may lead
		if err := locker.Check(l, leader.rule); err != nil {
			return refuse(err)
		}
	}
	if rule.Metadata == "" {
		leader.rule.Metadata = self.Name()
	}
	return leader, nil
}

// Run waits until this process leads, runs fn, and waits again when the term is over. It runs one
// fn at a time. fn's context ends with the term, and context.Cause returns the reason.
// locker.FromContext finds the lease in fn's context.
//
//	what ends the term                what Run does
//	fn returns before its context     it releases the lease, and returns what fn returned
//	the Leader's StepDown             it releases the lease, and waits again after 1 s
//	EndAfter is over                    it releases the lease, and waits again
//	the lease is lost or revoked      it waits until fn has returned, and waits again to lead
//	ctx ends                          it releases the lease when fn has returned. The error is nil,
//	                                  or fn's error if it is not the context's error
//	the Locker is closed              as when ctx ends, but the error is ErrClosed
//	fn panics                         it releases the lease, and the panic continues
//
// The lease is renewed until fn has returned, unless the lease was lost. So fn can finish its work
// before another process leads. After a release, the process that has waited longest gets a message
// and leads.
//
// When a lease is lost, fn's context ends before the server gives the key away. But fn may not
// return at once, and then it runs at the same time as the next leader. In that time, only the
// fence protects the data. When fn has not returned in time, the log says so: see [WithGrace].
//
// While the lock server is unavailable, Run tries again. The pause is 500 ms at first, and
// later a TTL, but never more than 30 s. Run also pauses, for 500 ms to 30 s, after a term that
// was shorter than a TTL and shorter than EndAfter. If fn has returned an error that is not the
// error of its context, Run logs that error before it waits again.
//
// Besides the errors of fn, Run returns ErrInvalidKey, ErrInvalidRule, ErrUnsupported and
// ErrClosed, in a *locker.Error. The end of ctx is no error. A second call of Run is refused.
func (l *Leader) Run(ctx context.Context, fn func(ctx context.Context) error) error {
	if err := l.begin(fn); err != nil {
		return err
	}
	defer l.end()
	var p pauses
	for {
		t, err := l.serve(ctx, fn)
		switch {
		case t != nil && t.completed:
			return err
		case ctx.Err() != nil:
			return t.ownError(ctx)
		case t != nil && errors.Is(t.snapshot().Cause, locker.ErrClosed):
			return errors.Join(t.snapshot().Cause, t.ownError(ctx))
		case t == nil && isFinal(err):
			return err
		}
		l.warn(ctx, t)
		select {
		case <-time.After(p.afterTerm(l, t, err)):
		case <-ctx.Done():
			return nil
		}
	}
}

// warn logs the error that fn returned in the term t, because Run continues and cannot return it. t
// may be nil.
func (l *Leader) warn(ctx context.Context, t *term) {
	if err := t.ownError(ctx); err != nil {
		l.cfg.logger.Warn("latchkit: the leader's function returned an error after its term", "key", l.rule.Key,
			"fence", t.lease.Fence(), "error", err)
	}
}

// isFinal reports whether err is an error after which another Acquire cannot succeed.
func isFinal(err error) bool {
	return errors.Is(err, locker.ErrClosed) || errors.Is(err, locker.ErrInvalidKey) ||
		errors.Is(err, locker.ErrInvalidRule) || errors.Is(err, locker.ErrUnsupported)
}

// begin refuses a second Run.
func (l *Leader) begin(fn func(context.Context) error) error {
	if fn == nil {
		return &locker.Error{Op: opLead, Key: l.rule.Key, Err: errors.New("the function is nil; give the work of the leader")}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started {
		return &locker.Error{Op: opLead, Key: l.rule.Key, Err: errors.New("Run was called before; make a Leader for each call")}
	}
	l.started = true
	return nil
}

func (l *Leader) end() {
	l.background.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.terms)
}

// serve waits for a term, and runs fn for it. If there was no term, the result t is nil and err is
// the reason.
func (l *Leader) serve(ctx context.Context, fn func(context.Context) error) (t *term, err error) {
	err = locker.Run(ctx, l.locker, l.rule, func(ctx context.Context) error {
		t = l.newTerm(ctx)
		return t.run(fn)
	})
	return t, err
}

// StepDown ends the term of this process. The cause of fn's context is then [ErrSteppedDown] with
// the reason. When fn has returned, the lease is released, and the process that has waited longest
// leads. If no process waits, this process leads again, 1 s later at the earliest. If this process
// does not lead, StepDown does nothing and returns false.
func (l *Leader) StepDown(reason string) bool {
	t := l.present()
	if t == nil {
		return false
	}
	t.cancel(t.wrap(fmt.Errorf("%w: %s", ErrSteppedDown, reason)))
	return true
}

// Leading returns the term of this process, and whether this process leads now. It compares the end
// of the lease with the clock at the moment of the call, and makes no call to the server. So if
// this process was paused for longer than its lease, Leading returns false even before the process
// has noticed the end of the lease. When Leading returns true, no other process leads at that
// moment, unless the term was revoked or the server has lost data. Soon after, another process may
// lead.
func (l *Leader) Leading() (Term, bool) {
	t := l.present()
	if t == nil || !time.Now().Before(t.lease.Expires()) {
		return Term{}, false
	}
	return t.snapshot(), true
}

// present returns the term of this process, or nil if the term is over or none has begun.
func (l *Leader) present() *term {
	l.mu.Lock()
	t := l.term
	l.mu.Unlock()
	if t == nil || t.isOver() {
		return nil
	}
	return t
}

// Terms returns a channel on which this process sends its Term when the term begins and when it
// ends. A slow receiver gets only the latest Term. There can be one receiver. The channel is closed
// when Run returns.
func (l *Leader) Terms() <-chan Term { return l.terms }

// announce sends news on the channel of Terms.
func (l *Leader) announce(news Term) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.terms:
	default:
	}
	l.terms <- news
}

const (
	shortestPause = 500 * time.Millisecond
	longestPause  = 30 * time.Second
	// afterStepDown is the pause after StepDown, in which another process can become the leader.
	afterStepDown = time.Second
)

// pauses are the pauses of a candidate between its attempts to lead.
type pauses struct {
	next   time.Duration // 0: shortestPause
	failed bool          // the last attempt failed
}

// afterTerm returns the pause that follows the term t. If there was no term, t is nil, and
// afterTerm returns the pause that follows the error err.
func (p *pauses) afterTerm(l *Leader, t *term, err error) time.Duration {
	if t == nil {
		if !p.failed {
			l.cfg.logger.Warn("latchkit: this process cannot become leader now, and tries again", "key", l.rule.Key, "error", err)
		}
		p.failed = true
		return p.grow(min(l.rule.TTL, longestPause)) // at most a TTL: after a crash, there is no leader for as long
	}
	p.failed = false
	whole := l.rule.TTL
	if l.longest > 0 {
		whole = min(whole, l.longest)
	}
	shown := t.snapshot()
	lasted := shown.Ended.Sub(shown.Began) >= whole
	if lasted {
		p.next = 0
	}
	switch {
	case errors.Is(shown.Cause, ErrSteppedDown):
		return afterStepDown
	case lasted:
		return 0
	}
	return p.grow(longestPause)
}

// grow returns the next pause, with jitter, and doubles it up to the parameter most.
func (p *pauses) grow(most time.Duration) time.Duration {
	d := min(max(p.next, shortestPause), max(most, shortestPause))
	p.next = 2 * d
	return d + rand.N(d/4)
}
