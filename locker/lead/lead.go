package lead

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/typednil"
	"github.com/latchkit/latchkit/locker"
)

// DefaultTTL is the TTL of a term when the Rule has none. Another process leads this long after a
// leader died.
const DefaultTTL = 10 * time.Second

// Run runs fn while this process leads, with a new [Leader]. See [Leader.Run].
func Run(ctx context.Context, l locker.Locker, rule locker.Rule, fn func(ctx context.Context) error, opts ...Option) error {
	leader, err := New(l, rule, opts...)
	if err != nil {
		return err
	}
	return leader.Run(ctx, fn)
}

// A Leader is this process as a candidate, and as the leader when its turn comes. Its methods are
// safe for concurrent use; its zero value is not usable. A Leader serves one call of Run.
type Leader struct {
	locker  locker.Locker
	rule    locker.Rule   // given to the Locker
	longest time.Duration // of a term; 0: no bound
	cfg     config

	background sync.WaitGroup // goroutines that watch fn after the end of a term

	mu      sync.Mutex
	begun   bool
	term    *term // the last one; nil before the first
	terms   chan Term
	changed chan struct{} // closed, and made anew, when a term begins or ends
}

// New returns a Leader for the key of rule. Processes with the same key, on the same server, elect
// one leader. On a semaphore of n they elect n.
//
// Of the rule, TTL is [DefaultTTL] if it is not set. Metadata identifies the leader for others; the
// default is HOST:PID. AtMost is the longest term. fn's context ends then, and the process stands
// again, behind all others that wait. fn has the time of [WithGrace] to return; then the lease
// ends. Wait and Once must not be set. A Locker without fences elects leaders as well, but their
// terms have no numbers.
//
// Errors: ErrInvalidKey, ErrInvalidRule, ErrUnsupported, in a *locker.Error.
func New(l locker.Locker, rule locker.Rule, opts ...Option) (*Leader, error) {
	refuse := func(err error) (*Leader, error) {
		return nil, &locker.Error{Op: locker.OpLead, Key: rule.Key, Err: err}
	}
	if typednil.Is(l) {
		return refuse(fmt.Errorf("%w: the Locker is nil; make one with locker.NewSingle, and check its error", locker.ErrUnsupported))
	}
	switch {
	case rule.Wait != 0:
		return refuse(fmt.Errorf("%w: Wait is %v; leave it out, because a candidate waits until it leads", locker.ErrInvalidRule, rule.Wait))
	case rule.Once != 0:
		return refuse(fmt.Errorf("%w: Once is %v; leave it out, because the job of a leader is done when its function returns", locker.ErrInvalidRule, rule.Once))
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
	leader := &Leader{locker: l, rule: rule, longest: rule.AtMost, cfg: cfg, terms: make(chan Term, 1), changed: make(chan struct{})}
	if rule.AtMost != 0 {
		leader.rule.AtMost += cfg.grace // fn needs time to return, and meanwhile no other process may lead
	}
	if rule.Metadata == "" {
		host, _ := os.Hostname()
		leader.rule.Metadata = host + ":" + strconv.Itoa(os.Getpid())
	}
	return leader, nil
}

// Run waits until this process leads, runs fn, and waits again when the term is over. It never runs
// fn twice at a time. fn's context ends with the term, and context.Cause says why;
// locker.FromContext finds the lease in it.
//
//	the term ends because             Run
//	fn returned before its context    releases the lease, and returns what fn returned
//	of the Leader's StepDown          releases the lease, and stands again after 1 s
//	it was as long as AtMost          releases the lease, and stands again
//	the lease was lost or revoked     waits until fn has returned, and stands again
//	ctx ended                         releases the lease when fn has returned. The error is nil, or that of fn unless it
//	                                  is the context's
//	the Locker was closed             the same, with ErrClosed
//	fn panicked                       releases the lease, and the panic goes on
//
// The lease is renewed until fn has returned, unless it was lost. So fn can finish its work before
// another process leads. A release gives the lead to the process that waits longest, by message.
//
// A lease that is lost ends fn's context before the server gives the key away. But fn may not
// return at once, and whatever it does then happens beside the next leader: only the fence protects
// the data. When fn has not returned in time, [OnOverrun] is called.
//
// While the lock server cannot be asked, Run tries again: after 500 ms, and later every TTL, 30 s
// at most. After terms shorter than a TTL it also pauses, for 500 ms to 30 s.
//
// Errors besides those of fn: ErrInvalidKey, ErrInvalidRule, ErrUnsupported, ErrClosed, in a
// *locker.Error. The end of ctx is none. A second call of Run is refused.
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
			return t.errorBeside(ctx)
		case t != nil && errors.Is(t.cause(), locker.ErrClosed):
			return t.cause()
		case t == nil && isFinal(err):
			return err
		}
		if !sleep(ctx, p.after(l, t, err)) {
			return nil
		}
	}
}

// isFinal reports whether another Acquire cannot succeed after this error.
func isFinal(err error) bool {
	return errors.Is(err, locker.ErrClosed) || errors.Is(err, locker.ErrInvalidKey) ||
		errors.Is(err, locker.ErrInvalidRule) || errors.Is(err, locker.ErrUnsupported)
}

// begin refuses a second Run.
func (l *Leader) begin(fn func(context.Context) error) error {
	if fn == nil {
		return &locker.Error{Op: locker.OpLead, Key: l.rule.Key, Err: errors.New("the function is nil; give the work of the leader")}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun {
		return &locker.Error{Op: locker.OpLead, Key: l.rule.Key, Err: errors.New("Run was called before; make a Leader for each call")}
	}
	l.begun = true
	return nil
}

func (l *Leader) end() {
	l.background.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.terms)
}

// serve waits for a term and serves it. t is nil if there was none; err is the reason.
func (l *Leader) serve(ctx context.Context, fn func(context.Context) error) (t *term, err error) {
	err = locker.Run(ctx, l.locker, l.rule, func(ctx context.Context) error {
		t = l.newTerm(ctx)
		return t.run(fn)
	})
	return t, err
}

// StepDown ends the term of this process, with [ErrSteppedDown] and the reason as the cause of fn's
// context. When fn has returned, the lease is released, and the process that waits longest leads.
// If none waits, this process leads again, 1 s later at the earliest. It returns false, and does
// nothing, if this process does not lead.
func (l *Leader) StepDown(reason string) bool {
	l.mu.Lock()
	t := l.term
	l.mu.Unlock()
	if t == nil || t.isOver() {
		return false
	}
	t.cancel(t.wrap(fmt.Errorf("%w: %s", ErrSteppedDown, reason)))
	return true
}

// Leading returns the term of this process, and whether this process leads now. It compares the end
// of the lease with the clock at the moment of the call, and makes no call to the server. So it is
// false also when this process was paused for longer than its lease, and has not noticed yet. When
// it is true, no other process leads at that moment; a moment later that may be different.
func (l *Leader) Leading() (Term, bool) {
	l.mu.Lock()
	t := l.term
	l.mu.Unlock()
	if t == nil || t.isOver() || !time.Now().Before(t.lease.Expires()) {
		return Term{}, false
	}
	return t.public(), true
}

// Terms returns a channel with the latest news of this process: that its term began, or that it
// ended. A receiver that is slow misses older news. There can be one receiver. The channel is
// closed when Run returns.
func (l *Leader) Terms() <-chan Term { return l.terms }

// tell publishes news.
func (l *Leader) tell(news Term) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.terms:
	default:
	}
	l.terms <- news
	close(l.changed)
	l.changed = make(chan struct{})
}

// change returns a channel that is closed when a term of this process begins or ends.
func (l *Leader) change() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}
