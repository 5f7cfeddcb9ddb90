package locker

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// An Engine turns a Store, which only makes atomic steps, into a [Locker]: it makes the tokens,
// keeps the deadlines, waits, renews, and undoes unclear calls. Make an Engine with [New] or
// another constructor, share it, and Close it when the service stops.
type Engine struct {
	can     store.Capabilities // what the Store can do besides its steps
	cfg     config
	keeper  keeper
	steps   calls.Steps // the Store itself if it begins steps without waiting; else calls.Wrap of it
	mayHang bool        // the Store has no Steps of its own, so its calls may hang
	cohorts cohorts
	waiters waiters
	post    post
	times   holdStats
	timers  calls.Timers
	tuner   *ttlTuner // nil: TTLs are fixed

	calls    calls.Pool  // goroutines of a Store without Steps, of subscriptions, of operators' calls and of the Observer
	acquires calls.Tasks // calls of Acquire
	// Waiters that have ended and to which no goroutine refers, so that their memory is used again.
	spareWaiters sync.Pool
	runs         calls.Tasks // the functions that Run is executing
	holders      calls.Tasks // leases, and calls of Acquire; Drain waits for them

	owned io.Closer // the client that Open has made; nil: the client belongs to the caller

	examine   sync.Once     // starts warn, after the first acquire that succeeds
	draining  chan struct{} // closed when Drain or Close begins
	shutDoors sync.Once     // closes draining
	closing   chan struct{} // closed when Close begins
	closes    atomic.Bool   // Close was called
	closed    chan struct{} // closed when Close has ended
	closeErr  error         // what Close returned, once closed is closed
	// The context of calls for which no caller waits. The context ends when Close has ended.
	background       context.Context
	cancelBackground context.CancelFunc
}

// Package store is below this package, so it gets the constructor when the program starts.
func init() { //nolint:gochecknoinits // it sets one variable
	store.NewEngine = func(s store.Store, opts any) (any, error) { return newFromStore(s, opts.([]Option)...) }
}

// newFromStore returns a Locker on s.
func newFromStore(s store.Store, opts ...Option) (*Engine, error) {
	cfg, err := configure(opts, Option.set)
	if err != nil {
		return nil, err
	}
	return newEngine(s, cfg), nil
}

func newEngine(s store.Store, cfg config) *Engine {
	e := &Engine{can: store.CapabilitiesOf(s), cfg: cfg, draining: make(chan struct{}), closing: make(chan struct{}), closed: make(chan struct{})}
	e.cfg.permits = e.can.Permits
	e.background, e.cancelBackground = context.WithCancel(context.Background())
	if cfg.adaptiveTTL.most > 0 {
		e.tuner = &ttlTuner{bounds: cfg.adaptiveTTL}
	}
	e.waiters.n, e.times.byName = make(map[string]int), make(map[string]*nameStats)
	e.keeper.init(e)
	steps, own := s.(calls.Steps)
	if !own {
		steps = calls.Wrap(s, e.can.Close, &e.calls, cfg.undoEnded)
	}
	e.steps, e.mayHang = steps, !own
	e.cohorts.init(e)
	e.post.init(e)
	if e.can.Watch != nil {
		e.can.Watch(e.cfg.warn)
	}
	return e
}

var _ Locker = (*Engine)(nil)

// Acquire takes the lock that rule describes, and waits as rule.Wait says. When ctx ends, Acquire
// returns within 250 ms, even while a call to the server hangs; [New] says for which clients it may
// take longer. A call without an answer is undone in the background. The end of ctx does not end a
// lease that was granted. For work that must end with the lease, use [Run] or Lease.Context.
//
// The error is an [*Error]: ErrBusy, ErrDone, ErrTooManyWaiters, ErrUnavailable, ErrUnsupported,
// ErrInvalidKey, ErrInvalidRule or ErrClosed. When ctx ended the wait, the error is ctx.Err(),
// joined with ErrBusy if a holder was seen, and with ErrUnavailable if a call had no answer yet.
// When ctx comes from a [Run] or a Lease that holds the same key of this Locker, the error is
// ErrSelfDeadlock; on a semaphore only if the caller's own units leave too few.
func (e *Engine) Acquire(ctx context.Context, rule Rule) (*Lease, error) {
	w, err := e.newWaiter(ctx, rule)
	if err != nil {
		return nil, err
	}
	returned := false
	defer func() {
		if !returned {
			_, _ = w.report(nil, &Error{Op: OpAcquire, Key: rule.Key, Err: errPanicked})
		}
		e.leaveAcquire()
	}()
	w.observed, w.finish = e.cfg.observe(ctx, OpAcquire, w.rule)
	lease, err := w.report(w.run())
	returned = true
	if err == nil {
		w.recycle()
	}
	return lease, err
}

// newWaiter makes the waiter of one call of Acquire, and counts it among those under way. When it
// fails, nothing was sent and nothing was observed.
func (e *Engine) newWaiter(ctx context.Context, rule Rule) (*waiter, error) {
	adaptive := e.tuner != nil && rule.TTL == 0
	if adaptive {
		rule.TTL = e.tuner.ttl()
	}
	rule, err := e.cfg.resolve(rule)
	w, used := e.spareWaiters.Get().(*waiter)
	if !used {
		w = new(waiter)
	}
	w.engine, w.rule, w.adaptive, w.began, w.ctx, w.observed = e, rule, adaptive, time.Now(), ctx, ctx
	w.place = &w.own // set at once, because the acquire may end before its first question
	if err == nil {
		err = w.mindOrder(ctx)
	}
	if err == nil {
		e.cfg.order.note(ctx, w)
	}
	if err == nil && !e.enterAcquire(w) {
		err = ErrClosed
	}
	if err != nil {
		return nil, w.fail(err, 0)
	}
	return w, nil
}

// report tells the Observer the result (lease, err), and returns the same values.
func (w *waiter) report(lease *Lease, err error) (*Lease, error) {
	if end := w.finish; end != nil {
		w.finish = nil
		finish(end, w.outcome(lease, err))
	}
	if err != nil {
		return nil, err
	}
	w.engine.examine.Do(func() { w.engine.calls.Do(w.engine.warn) })
	return lease, nil
}

// Close stops the Locker, which then admits no new callers. Waiters fail with ErrClosed, and the
// contexts of leases end with ErrClosed. Close then waits until the functions of [Run] have
// returned, their leases are released and unclear calls are undone; meanwhile it renews the leases.
// It waits at most until ctx ends, or for 50 ms if ctx has ended already. If ctx has no deadline,
// Close waits for the functions of Run as long as they need, and then for answers of the server for
// at most 5 s. A key that is still held after Close stays locked until its TTL is over. Leases that
// were taken with Acquire may be released after Close, except on a Locker of [Open], whose client
// Close ends. Any other client belongs to the caller and stays open.
//
// If something was left when the wait ended, the error says what. It is the error of ctx, or
// ErrUnavailable after these 5 s. A second Close waits for the first one, and returns the same
// error.
func (e *Engine) Close(ctx context.Context) error {
	ending, stop := atLeastAMoment(ctx)
	defer stop()
	if e.closes.Swap(true) {
		select {
		case <-e.closed:
			return e.closeErr
		case <-ending.Done():
			return &Error{Op: opClose, Err: ctx.Err()}
		}
	}
	defer close(e.closed)
	close(e.closing)
	e.refuseNewcomers()
	silent := e.post.stop()
	e.acquires.Close()
	e.runs.Close()
	e.endContexts()
	var err error
	unfinished := "" // what the error is about
	await := func(ctx context.Context, what string, wait func(context.Context) error) {
		if failed := wait(ctx); failed != nil && err == nil {
			err, unfinished = failed, what
		}
	}
	await(ctx, "calls of Acquire", e.acquires.Wait)
	await(ctx, "functions of Run", e.runs.Wait)
	if _, limited := ctx.Deadline(); !limited {
		timer := time.AfterFunc(closeWaitsForAnswers, stop)
		defer timer.Stop()
	}
	e.keeper.stop()
	for _, l := range e.keeper.leases() {
		l.notifyObserver(ErrClosed) // no renewal follows, and perhaps no Release
	}
	e.cancelBackground()
	await(ending, "releases that the server has not answered", e.steps.Close)
	await(ending, "calls in the background", e.calls.Stop)
	await(ending, "subscriptions", func(ctx context.Context) error {
		select {
		case <-silent:
			return nil
		case <-ctx.Done(): // a subscription hangs; Close leaves it to go-redis to end it
			return ctx.Err()
		}
	})
	if e.owned != nil {
		_ = e.owned.Close() // it only closes sockets, which leaves nothing to do
	}
	if err != nil {
		err = cmp.Or(ctx.Err(), fmt.Errorf("%w: no answer within %v", ErrUnavailable, closeWaitsForAnswers))
		e.closeErr = &Error{Op: opClose, Err: fmt.Errorf("%w: %s were still under way; keys that are still held stay locked until their TTL is over", err, unfinished)}
	}
	return e.closeErr
}

// atLeastAMoment returns a context that ends with ctx, or, if ctx has ended already, for example by
// a signal, after a moment. What ends at once has ended by then, so Close fails only if something
// was left.
func atLeastAMoment(ctx context.Context) (ending context.Context, stop func()) {
	if ctx.Err() == nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), 50*time.Millisecond)
}

// undo repeats the release of ch in the background until it is confirmed or useless.
func (e *Engine) undo(ch calls.Chore) {
	ch.Try = func(c store.Claim, onAnswer func(store.Grant, error)) {
		e.steps.Begin(context.Background(), calls.Undo, c, onAnswer)
	}
	e.steps.Repeat(ch)
}

func (e *Engine) isClosing() bool {
	select {
	case <-e.closing:
		return true
	default:
		return false
	}
}

// warn reports the settings of the server that are unsafe, once, after the first acquire.
func (e *Engine) warn() {
	if e.can.CheckServer == nil {
		return
	}
	ctx, cancel := context.WithTimeout(e.background, calls.Timeout)
	defer cancel()
	for _, w := range e.can.CheckServer(ctx) {
		if _, ok := e.cfg.observer.(Warner); !ok {
			if _, again := warned.LoadOrStore(w, true); again {
				continue
			}
		}
		e.cfg.warn(w)
	}
}

// warned has the warnings about servers that were logged. A process may have many Lockers on one
// server, and one line tells all.
var warned sync.Map

// warn sends the warning w to the Observer, or to the log.
func (c *config) warn(w Warning) {
	if o, ok := c.observer.(Warner); ok {
		defer absorb("Warn")
		o.Warn(w)
	} else {
		slog.Warn("latchkit: "+w.Text, "code", w.Code)
	}
}

// undoEnded warns that the server has refused, with the error err, to release a lock that no caller
// holds any more. It warns at most once a minute, because the next locks have the same trouble.
func (c *config) undoEnded(err error) {
	now, last := int64(instantOf(time.Now())), c.refusedAt.Load()
	if last != 0 && now-last < int64(time.Minute) || !c.refusedAt.CompareAndSwap(last, now) {
		return
	}
	c.warn(Warning{
		Code: "release-refused",
		Text: "the server refuses to release an unused lock, so its key stays locked until its TTL is over: " + err.Error(),
	})
}

// Drain prepares l for the end of the program: see [Engine.Drain]. It works for all Lockers of this
// package, and for wrappers that have a method Drain(context.Context) error. For other Lockers, the
// error is ErrUnsupported.
func Drain(ctx context.Context, l Locker) error {
	if isNil(l) {
		return errNil(opDrain, "", "Locker", "one of New, and check its error")
	}
	if d, ok := l.(interface {
		Drain(ctx context.Context) error
	}); ok {
		return d.Drain(ctx)
	}
	return &Error{Op: opDrain, Err: fmt.Errorf("%w: the %T has no method Drain; call Drain of the Engine inside, or let the wrapper forward the call", ErrUnsupported, l)}
}

// Drain is the first step of a shutdown. From now on, callers that wait for a lock, and callers
// that come later, fail with ErrClosed and a RetryAfter. Holders keep their leases and their
// contexts, and Drain waits until the last of them has released its lease. A caller whose context
// has a lease of this Locker counts as a holder: it may wait for further locks.
//
// If ctx ends first, the contexts of the leases that are left end with ErrClosed, and Drain returns
// the error of ctx; the leases are still renewed until they are released. Then call [Engine.Close]:
//
//	drained := make(chan error, 1)
//	go func() { drained <- l.Drain(ctx) }() // refuses newcomers; the holders finish
//	err := errors.Join(server.Shutdown(ctx), <-drained, l.Close(context.Background())) // ctx may be over
//
// Each further Drain waits as well; the first ctx that ends is the end of the holders' time. A
// Close during a Drain ends the contexts of the leases at once, and the Drain with ErrClosed. After
// Close, Drain returns nil. The lease of a leader (package lead) ends when the ctx of lead.Run
// does, so end that ctx before.
func (e *Engine) Drain(ctx context.Context) error {
	e.refuseNewcomers()
	idle := e.holders.Idle()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-e.closing:
		return &Error{Op: opDrain, Err: fmt.Errorf("%w while leases were held", ErrClosed)}
	case <-ctx.Done():
		left := e.endContexts()
		return &Error{Op: opDrain, Err: fmt.Errorf("%w: %d leases were still held, and their contexts have ended; call Close, and give Drain a longer ctx if the holders need more time", ctx.Err(), left)}
	}
}

// Drain drains the Engine inside.
func (p *partLocker) Drain(ctx context.Context) error { return Drain(ctx, p.inner) }

// refuseNewcomers makes callers without a lease fail, also those that wait already.
func (e *Engine) refuseNewcomers() {
	e.shutDoors.Do(func() {
		e.holders.Close()
		close(e.draining)
	})
}

// endContexts ends the contexts of all leases with ErrClosed, and returns how many leases there
// are.
func (e *Engine) endContexts() int {
	all := e.keeper.leases()
	for _, l := range all {
		l.state.cancel(&Error{Op: OpHold, Key: l.rule.Key, Err: ErrClosed})
	}
	return len(all)
}

// errClosed returns the error for an acquire of key after the begin of Drain or Close. Another
// process can do the work by the time of its RetryAfter.
func errClosed(key string) error {
	return &Error{Op: OpAcquire, Key: key, RetryAfter: time.Second, Err: ErrClosed}
}

// enterAcquire counts a call of Acquire, by w, among the calls under way. It returns
// false if the caller is refused, because the Locker is closed or being drained.
func (e *Engine) enterAcquire(w *waiter) bool {
	w.refused = e.draining
	// Join fails when the lease of the caller has ended meanwhile, and Drain has returned.
	if !e.holders.Enter() && (!w.isHolder() || !e.holders.Join()) {
		return false
	}
	if e.acquires.Enter() {
		return true
	}
	e.holders.Leave()
	return false
}

// leaveAcquire ends what enterAcquire has counted. If the call has got a lease, the lease was
// counted as well. Close waits for this call before it stops the undos.
func (e *Engine) leaveAcquire() {
	e.acquires.Leave()
	e.holders.Leave()
}

// isRefused reports whether the caller must not wait any longer, because the Locker is closed or
// drained. The look into the context comes only when it matters.
func (w *waiter) isRefused() bool {
	select {
	case <-w.refused:
	default:
		return false
	}
	if w.refused == w.engine.draining && w.isHolder() {
		w.refused = w.engine.closing
		return w.engine.isClosing()
	}
	return true
}

// isHolder reports whether the caller's context has a lease of this Engine that has not ended.
func (w *waiter) isHolder() bool {
	for l := range leasesIn(w.ctx) {
		if l.engine == w.engine && l.state.endError() == nil {
			return true
		}
	}
	return false
}
