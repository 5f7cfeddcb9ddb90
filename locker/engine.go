package locker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// An Engine turns a [Store] into a [Locker]. It owns the tokens, the deadlines, the waiting, the renewals and the
// undoing of what was left unclear; the Store only makes atomic steps. Make one with [New] or a constructor such as
// [NewSingle], share it, and Close it when the service stops.
type Engine struct {
	store   Store
	readers Downgrader // the same Store; nil: it has no readers
	cfg     config
	keeper  keeper
	cleaner cleaner
	cohorts cohorts
	waiters waiters
	post    post
	times   times
	timers  timers
	pace    *pace   // nil: TTLs are fixed
	joined  *Engine // of leases that were joined; nil where that cannot be

	calls    callers
	acquires tasks // calls of Acquire
	runs     tasks // Run's functions

	examine    sync.Once
	closing    chan struct{} // closed when Close begins
	closed     chan struct{} // closed when it has ended
	closeErr   error         // what it returned
	once       sync.Once
	background context.Context // of calls that nobody waits for; ends when Close has ended
	cut        context.CancelFunc
}

// New returns a Locker over s. The constructors of the kinds of lock call it; call it for a Store of your own.
func New(s Store, opts ...Option) (*Engine, error) {
	if isNil(s) {
		return nil, errors.New("latchkit: New: the Store is nil")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if cfg.renewClient != nil || cfg.autoPipeline || cfg.acks.asked {
		return nil, errors.New("latchkit: New: WithRenewClient, WithAutoPipeline and WithReplicaAck are for constructors that take a Redis client; set your Store up by itself")
	}
	return newEngine(s, cfg), nil
}

func newEngine(s Store, cfg config) *Engine {
	e := &Engine{store: s, cfg: cfg, closing: make(chan struct{}), closed: make(chan struct{})}
	e.calls.store = s
	e.readers, _ = s.(Downgrader)
	e.background, e.cut = context.WithCancel(context.Background())
	if cfg.adaptiveTTL.most > 0 {
		e.pace = &pace{bounds: cfg.adaptiveTTL}
	}
	e.keeper.init(e)
	e.cleaner = cleaner{calls: &e.calls, release: s.Release, background: e.background, closing: e.closing}
	e.cleaner.init()
	e.cohorts.init(e)
	e.post.init(e)
	if j, ok := s.(Joiner); ok {
		e.joined = joinedEngine(j, cfg)
	}
	return e
}

var _ Locker = (*Engine)(nil)

// Acquire takes the lock that rule describes, waiting as rule.Wait says. ctx ends the wait, at once, even while a call
// to the server hangs; what was left unclear by then is undone in the background. ctx does not end the lease that was
// granted: use [Run], or Lease.Context, for work that must end with the lease.
//
// The error is an [*Error]: ErrBusy, ErrDone, ErrTooManyWaiters, ErrUnavailable, ErrUnsupported, ErrInvalidKey,
// ErrInvalidRule, ErrClosed; ctx.Err() when ctx ended the wait, with ErrBusy beside it where a holder was seen.
func (e *Engine) Acquire(ctx context.Context, rule Rule) (*Lease, error) {
	return e.acquire(ctx, rule, nil)
}

// acquire is Acquire, or with a pass Join.
func (e *Engine) acquire(ctx context.Context, rule Rule, pass *Pass) (*Lease, error) {
	a, err := e.begin(ctx, rule)
	if err != nil {
		return nil, err
	}
	defer e.acquires.leave() // Close waits, because what is unclear then is undone before it stops the cleaner
	a.pass = pass
	a.observe()
	return a.end(a.run())
}

// begin makes the acquisition of one call of Acquire, and counts it among those that are under way. Nothing was sent, and
// nobody was told, when it fails.
func (e *Engine) begin(ctx context.Context, rule Rule) (*acquisition, error) {
	adaptive := e.pace != nil && rule.TTL == 0
	if adaptive {
		rule.TTL = e.pace.ttl()
	}
	rule, err := e.cfg.resolve(rule)
	a := &acquisition{engine: e, rule: rule, adaptive: adaptive, began: time.Now(), caller: ctx, ctx: ctx}
	a.ticket = &a.own // its outcome may be told before it asks
	if err == nil {
		err = a.mindOrder(ctx)
	}
	if err == nil && !e.acquires.enter() {
		err = ErrClosed
	}
	if err != nil {
		return nil, &Error{Op: OpAcquire, Key: rule.Key, Err: err}
	}
	return a, nil
}

// Inspect says who holds key now. It is a look, not a lock: the answer may be old when it arrives.
//
// Errors: ErrInvalidKey, ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) Inspect(ctx context.Context, key string) (Info, error) {
	s, ok := e.store.(Inspector)
	if !ok {
		return Info{}, &Error{Op: OpInspect, Key: key, Err: ErrUnsupported}
	}
	return administer(ctx, e, OpInspect, key, func(l string) (Info, error) { return s.Inspect(ctx, l) })
}

// Break throws out the holder of key that [Engine.Inspect] showed with this fence. Its lease ends with ErrRevoked at its
// next renewal, or if it has none at its deadline, until when it may still work: let the data check the fence. Give a reason, it is told to
// the holder: no secrets.
//
// Errors: ErrGone when no holder has that fence any more, so repeating a Break hits nobody else; ErrInvalidKey,
// ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) Break(ctx context.Context, key string, fence uint64, reason string) error {
	if err := checkKey(e.cfg.prefix + key); err != nil {
		return &Error{Op: OpBreak, Key: key, Err: err}
	}
	ctx, end := e.cfg.begin(ctx, OpBreak, Rule{Key: key, Name: Rule{Key: key}.name()})
	err := e.breakHolder(ctx, key, fence, reason)
	if end != nil {
		end(Outcome{Result: resultOf(OpBreak, err), Err: err, Fence: fence, Calls: 1})
	}
	return err
}

func (e *Engine) breakHolder(ctx context.Context, key string, fence uint64, reason string) error {
	s, ok := e.store.(Breaker)
	if !ok {
		return &Error{Op: OpBreak, Key: key, Err: ErrUnsupported}
	}
	g, err := administer(ctx, e, OpBreak, key, func(l string) (Grant, error) { return s.Break(ctx, l, fence, reason) })
	if err == nil && g.State != Released {
		return &Error{Op: OpBreak, Key: key, Err: fmt.Errorf("%w: fence %d; look again with Inspect", ErrGone, fence)}
	}
	return err
}

// RaiseFence makes the next fence of key larger than atLeast: the repair when the server lost its counter and the
// database remembers a larger one. It never lowers it.
//
// Errors: ErrInvalidKey, ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) RaiseFence(ctx context.Context, key string, atLeast uint64) error {
	s, ok := e.store.(Fencer)
	if !ok {
		return &Error{Op: OpRaiseFence, Key: key, Err: ErrUnsupported}
	}
	_, err := administer(ctx, e, OpRaiseFence, key, func(l string) (struct{}, error) {
		return struct{}{}, s.RaiseFence(ctx, l, atLeast)
	})
	return err
}

// administer makes one call about key, raced against ctx.
func administer[T any](ctx context.Context, e *Engine, op Op, key string, call func(l string) (T, error)) (T, error) {
	var none T
	l := e.cfg.prefix + key
	if err := checkKey(l); err != nil {
		return none, &Error{Op: op, Key: key, Err: err}
	}
	if err := ctx.Err(); err != nil {
		return none, &Error{Op: op, Key: key, Err: err}
	}
	select {
	case a := <-ask(&e.calls, func() (T, error) { return call(l) }):
		if a.err != nil {
			return none, &Error{Op: op, Key: key, Err: unavailable(a.err)}
		}
		return a.value, nil
	case <-ctx.Done():
		return none, &Error{Op: op, Key: key, Err: ctx.Err()}
	}
}

// Close stops the Locker: no more admissions, waiters end with ErrClosed, and so do the contexts of leases. It waits
// until the functions of [Run] have returned and their leases are released, renewing them meanwhile, and until what was
// left unclear is undone; at most until ctx ends. Keys that are still held then run out by their TTL. Leases taken by
// hand may be released after Close. The Store's client is the caller's and stays open.
//
// The error is ctx's, when something was still under way; a second Close waits for the first, and returns
// the same.
func (e *Engine) Close(ctx context.Context) error {
	first := false
	e.once.Do(func() { first = true })
	if !first {
		select {
		case <-e.closed:
			return e.closeErr
		case <-ctx.Done():
			return &Error{Op: OpClose, Err: ctx.Err()}
		}
	}
	defer close(e.closed)
	close(e.closing)
	silent := e.post.stop()
	e.acquires.close()
	e.runs.close()
	for _, l := range e.keeper.leases() {
		l.cancel(&Error{Op: OpHold, Key: l.rule.Key, Err: ErrClosed})
	}
	var err error
	if e.joined != nil {
		err = e.joined.Close(ctx)
	}
	if acquired := e.acquires.wait(ctx); err == nil {
		err = acquired
	}
	if ran := e.runs.wait(ctx); err == nil {
		err = ran
	}
	e.keeper.stop()
	for _, l := range e.keeper.leases() {
		l.tell(ErrClosed) // nobody watches it any more; a Release may still come
	}
	if cleaned := e.cleaner.stop(ctx); err == nil {
		err = cleaned
	}
	e.cut()
	if s, ok := e.store.(settler); ok {
		if settled := s.settle(ctx); err == nil {
			err = settled
		}
	}
	if idle := e.calls.stop(ctx); err == nil {
		err = idle
	}
	select {
	case <-silent:
	case <-ctx.Done(): // a subscription that hangs ends when go-redis gives it up
		err = cmp.Or(err, ctx.Err())
	}
	if err != nil {
		e.closeErr = &Error{Op: OpClose, Err: fmt.Errorf("%w: work or calls were still under way; held keys run out by their TTL", err)}
	}
	return e.closeErr
}

// settler is a Store that goes on by itself after it has answered. Close waits for that.
type settler interface{ settle(context.Context) error }

func (e *Engine) isClosing() bool {
	select {
	case <-e.closing:
		return true
	default:
		return false
	}
}

// warn tells, once, what is unsafe about the server. It runs beside the first acquire, not in its way.
func (e *Engine) warn() (struct{}, error) {
	x, ok := e.store.(Examiner)
	if !ok {
		return struct{}{}, nil
	}
	ctx, cancel := context.WithTimeout(e.background, callTimeout)
	defer cancel()
	for _, w := range x.Examine(ctx) {
		if o, ok := e.cfg.observer.(Warner); ok {
			o.Warn(w)
		} else {
			slog.Warn("latchkit: "+w.Text, "code", w.Code)
		}
	}
	return struct{}{}, nil
}
