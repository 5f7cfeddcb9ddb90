package locker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/typednil"
	"github.com/latchkit/latchkit/locker/store"
)

// An Engine turns a [Store] into a [Locker]. The Engine makes the tokens, keeps the deadlines,
// waits, renews, and undoes unclear calls. The Store only makes atomic steps. Make an Engine with
// [New] or a constructor such as [NewSingle], share it, and Close it when the service stops.
type Engine struct {
	store    Store
	readers  store.Downgrader // the Store as a Downgrader; nil: the Store has no readers
	confirms bool             // grants by message need a confirmation
	carries  bool             // a release may carry the acquire that follows
	cfg      config
	keeper   keeper
	steps    calls.Steps    // the Steps of the Store
	foreign  *calls.Foreign // equals steps if the Store has no Steps of its own
	cohorts  cohorts
	waiters  waiters
	post     post
	times    holdStats
	timers   calls.Timers
	tuner    *ttlTuner // nil: TTLs are fixed
	joined   *Engine   // the Engine of joined leases; nil: the Store has no Joiner

	calls    calls.Pool
	acquires calls.Tasks // calls of Acquire
	// This pool has acquisitions that have ended, so that their memory is used again. No other
	// goroutine refers to them.
	acquisitions sync.Pool
	runs         calls.Tasks // the functions that Run is executing

	departures departures // releases in the background

	examine  sync.Once
	closing  chan struct{} // closed when Close begins
	closed   chan struct{} // closed when Close has ended
	closeErr error         // what Close returned
	once     sync.Once
	// The context of calls for which no caller waits. The context ends when Close has ended.
	background context.Context
	cut        context.CancelFunc
}

// New returns a Locker on s. The constructors for each kind of lock call New. Call New yourself for
// a Store of your own.
func New(s Store, opts ...Option) (*Engine, error) {
	if typednil.Is(s) {
		return nil, errors.New("latchkit: New: the Store is nil")
	}
	cfg, err := configure(opts, Option.set)
	if err != nil {
		return nil, err
	}
	return newEngine(s, cfg), nil
}

func newEngine(s Store, cfg config) *Engine {
	e := &Engine{store: s, cfg: cfg, closing: make(chan struct{}), closed: make(chan struct{})}
	e.calls.Store = s
	e.readers, _ = s.(store.Downgrader)
	e.cfg.noUnits = noUnits(s)
	if c, ok := s.(store.Confirmer); ok {
		e.confirms = c.NeedsConfirmation()
	}
	_, e.carries = s.(store.Carrier)
	e.background, e.cut = context.WithCancel(context.Background())
	if cfg.adaptiveTTL.most > 0 {
		e.tuner = &ttlTuner{bounds: cfg.adaptiveTTL}
	}
	e.keeper.init(e)
	if steps, ok := s.(calls.Steps); ok {
		e.steps = steps
	} else {
		e.foreign = calls.NewForeign(&e.calls, cfg.undoEnded)
		e.steps = e.foreign
	}
	switch {
	case !cfg.background:
	case e.foreign != nil:
		e.departures.steps = e.foreign.Releases()
	default:
		e.departures.steps, _ = e.steps.(calls.Releases)
	}
	e.cohorts.init(e)
	e.post.init(e)
	if j, ok := s.(store.Joiner); ok {
		e.joined = joinedEngine(j, cfg)
	}
	if m, ok := s.(store.Membership); ok {
		m.Watch(e.cfg.warn)
	}
	return e
}

var _ Locker = (*Engine)(nil)

// Acquire takes the lock that rule describes, and waits as rule.Wait says. When ctx ends, the wait
// ends at once, even while a call to the server hangs. Then a call without an answer is undone in
// the background. The end of ctx does not end a lease that was granted. For work that must end with
// the lease, use [Run] or Lease.Context.
//
// The error is an [*Error]: ErrBusy, ErrDone, ErrTooManyWaiters, ErrUnavailable, ErrUnsupported,
// ErrInvalidKey, ErrInvalidRule or ErrClosed. When ctx ended the wait, the error is ctx.Err(),
// joined with ErrBusy if a holder was seen.
func (e *Engine) Acquire(ctx context.Context, rule Rule) (*Lease, error) {
	return e.acquire(ctx, rule, nil)
}

// acquire does the work of Acquire. With a pass, it does the work of Join.
func (e *Engine) acquire(ctx context.Context, rule Rule, pass *Delegation) (*Lease, error) {
	a, err := e.newAcquisition(ctx, rule)
	if err != nil {
		return nil, err
	}
	defer e.acquires.Leave() // Close waits for this call before it stops the undos
	a.pass = pass
	a.observe()
	lease, err := a.end(a.run())
	if err == nil && a.isPrivate() {
		a.recycle()
	}
	return lease, err
}

// newAcquisition makes the acquisition of one call of Acquire, and counts it among those under way.
// When it fails, nothing was sent and nothing was observed.
func (e *Engine) newAcquisition(ctx context.Context, rule Rule) (*acquisition, error) {
	adaptive := e.tuner != nil && rule.TTL == 0
	if adaptive {
		rule.TTL = e.tuner.ttl()
	}
	rule, err := e.cfg.resolve(rule)
	a, used := e.acquisitions.Get().(*acquisition)
	if !used {
		a = new(acquisition)
	}
	a.engine, a.rule, a.adaptive, a.began, a.caller, a.ctx = e, rule, adaptive, time.Now(), ctx, ctx
	a.ticket = &a.own // the outcome may be needed before the first question
	if err == nil {
		err = a.mindOrder(ctx)
	}
	if err == nil && !e.acquires.Enter() {
		err = ErrClosed
	}
	if err != nil {
		return nil, &Error{Op: OpAcquire, Key: rule.Key, Err: err}
	}
	return a, nil
}

// Inspect returns the present holder of key. The answer may be out of date when it arrives, because
// Inspect does not lock the key.
//
// Errors: ErrInvalidKey, ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) Inspect(ctx context.Context, key string) (Info, error) {
	s, ok := e.store.(store.Inspector)
	if !ok {
		return Info{}, &Error{Op: OpInspect, Key: key, Err: ErrUnsupported}
	}
	info, err := administer(ctx, e, OpInspect, key, func(l string) (Info, error) { return s.Inspect(ctx, l) })
	info.Metadata = unsigned(info.Metadata)
	for i := range info.Permits {
		info.Permits[i].Metadata = unsigned(info.Permits[i].Metadata)
	}
	return info, err
}

// Revoke takes the lease of key away from the holder with this fence, which [Engine.Inspect] shows.
// The holder learns of the revocation (ErrRevoked) at its next renewal, or at its deadline if the
// lease is never renewed. Until then the holder may continue to work, so let the database check the
// fence. reason is shown to the holder, so do not put secrets in it.
//
// Errors: ErrGone when no holder has that fence any more, so that a repeated Revoke cannot hit
// another holder; ErrInvalidKey, ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) Revoke(ctx context.Context, key string, fence uint64, reason string) error {
	if err := store.CheckKey(e.cfg.prefix + key); err != nil {
		return &Error{Op: OpRevoke, Key: key, Err: err}
	}
	ctx, end := e.cfg.observe(ctx, OpRevoke, Rule{Key: key, Name: Rule{Key: key}.name()})
	err := e.revoke(ctx, key, fence, reason)
	if end != nil {
		finish(end, Outcome{Result: resultOf(OpRevoke, err), Err: err, Fence: fence, Calls: 1})
	}
	return err
}

func (e *Engine) revoke(ctx context.Context, key string, fence uint64, reason string) error {
	s, ok := e.store.(store.Revoker)
	if !ok {
		return &Error{Op: OpRevoke, Key: key, Err: ErrUnsupported}
	}
	g, err := administer(ctx, e, OpRevoke, key, func(l string) (store.Grant, error) { return s.Revoke(ctx, l, fence, reason) })
	if err == nil && g.State != store.Released {
		return &Error{Op: OpRevoke, Key: key, Err: fmt.Errorf("%w: fence %d; look again with Inspect", ErrGone, fence)}
	}
	return err
}

// RaiseFence makes the next fence of key larger than atLeast. Use RaiseFence if the server has lost
// its counter and the database remembers a larger fence. RaiseFence never lowers the fence.
//
// Errors: ErrInvalidKey, ErrUnavailable, ErrUnsupported, ctx.Err().
func (e *Engine) RaiseFence(ctx context.Context, key string, atLeast uint64) error {
	s, ok := e.store.(store.Fencer)
	if !ok {
		return &Error{Op: OpRaiseFence, Key: key, Err: ErrUnsupported}
	}
	_, err := administer(ctx, e, OpRaiseFence, key, func(l string) (struct{}, error) {
		return struct{}{}, s.RaiseFence(ctx, l, atLeast)
	})
	return err
}

// administer makes one call about key, and stops waiting for the answer when ctx ends.
func administer[T any](ctx context.Context, e *Engine, op Op, key string, call func(l string) (T, error)) (T, error) {
	var none T
	l := e.cfg.prefix + key
	if err := store.CheckKey(l); err != nil {
		return none, &Error{Op: op, Key: key, Err: err}
	}
	return inquire(ctx, e, op, key, func() (T, error) { return call(l) })
}

// inquire makes one call, and stops waiting for the answer when ctx ends.
func inquire[T any](ctx context.Context, e *Engine, op Op, key string, call func() (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, &Error{Op: op, Key: key, Err: err}
	}
	select {
	case a := <-calls.Ask(&e.calls, call):
		if a.Err != nil {
			return none, &Error{Op: op, Key: key, Err: unavailable(a.Err)}
		}
		return a.Value, nil
	case <-ctx.Done():
		return none, &Error{Op: op, Key: key, Err: ctx.Err()}
	}
}

// Close stops the Locker, which then admits no new callers. Waiters fail with ErrClosed, and the
// contexts of leases end with ErrClosed. Close then waits until the functions of [Run] have
// returned, their leases are released and unclear calls are undone. It waits at most until ctx
// ends. While Close waits, the leases are renewed. A key that is still held after Close stays
// locked until its TTL is over. Leases that were taken with Acquire may be released after Close.
// The Store's client belongs to the caller and stays open.
//
// If calls were still running when ctx ended, Close returns the error of ctx. A second Close waits
// for the first Close, and returns the same error.
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
	e.acquires.Close()
	e.runs.Close()
	for _, l := range e.keeper.leases() {
		l.cancel(&Error{Op: OpHold, Key: l.rule.Key, Err: ErrClosed})
	}
	var err error
	if e.joined != nil {
		err = e.joined.Close(ctx)
	}
	if acquired := e.acquires.Wait(ctx); err == nil {
		err = acquired
	}
	if ran := e.runs.Wait(ctx); err == nil {
		err = ran
	}
	if departed := e.departures.tasks.Wait(ctx); err == nil {
		err = departed
	}
	e.keeper.stop()
	for _, l := range e.keeper.leases() {
		l.notifyObserver(ErrClosed) // the lease is not renewed any more; a Release may still come
	}
	if e.foreign != nil {
		if undone := e.foreign.Close(ctx); err == nil {
			err = undone
		}
	}
	e.cut()
	if s, ok := e.store.(store.Closer); ok {
		if closed := s.Close(ctx); err == nil {
			err = closed
		}
	}
	if idle := e.calls.Stop(ctx); err == nil {
		err = idle
	}
	select {
	case <-silent:
	case <-ctx.Done(): // Close does not wait for a subscription that hangs: go-redis ends it
		err = cmp.Or(err, ctx.Err())
	}
	if err != nil {
		e.closeErr = &Error{Op: OpClose, Err: fmt.Errorf("%w: work or calls were still under way; held keys run out by their TTL", err)}
	}
	return e.closeErr
}

func (e *Engine) isClosing() bool {
	select {
	case <-e.closing:
		return true
	default:
		return false
	}
}

// warn reports, once, the settings of the server that are unsafe. It runs beside the first acquire
// and does not delay it.
func (e *Engine) warn() (struct{}, error) {
	x, ok := e.store.(store.ServerChecker)
	if !ok {
		return struct{}{}, nil
	}
	ctx, cancel := context.WithTimeout(e.background, calls.Timeout)
	defer cancel()
	for _, w := range x.CheckServer(ctx) {
		e.cfg.warn(w)
	}
	return struct{}{}, nil
}

// warn sends a warning to the Observer, or to the log.
func (c *config) warn(w Warning) {
	if o, ok := c.observer.(Warner); ok {
		defer absorb("Warn")
		o.Warn(w)
	} else {
		slog.Warn("latchkit: "+w.Text, "code", w.Code)
	}
}

// Nodes asks the nodes of a quorum for their state: which nodes vote, why the other nodes do not
// vote, and for how long they will not vote. Like every acquire, Nodes also performs the steps that
// let a node vote again. ctx limits the whole wait, and [WithNodeTimeout] limits the wait for each
// node. A Locker that is no quorum returns [ErrUnsupported].
func (e *Engine) Nodes(ctx context.Context) ([]Node, error) {
	m, ok := e.store.(store.Membership)
	if !ok {
		return nil, &Error{Op: OpInspect, Err: ErrUnsupported}
	}
	if !e.acquires.Enter() {
		return nil, &Error{Op: OpInspect, Err: ErrClosed}
	}
	defer e.acquires.Leave()
	nodes, err := m.Nodes(ctx)
	if err != nil {
		return nodes, &Error{Op: OpInspect, Err: err}
	}
	return nodes, nil
}

// undoEnded warns that the server refuses to release a lock that no caller holds any more.
func (c *config) undoEnded(err error) {
	c.warn(Warning{
		Code: "release-refused",
		Text: "the server refuses to release an unused lock, so its key stays locked until its TTL is over: " + err.Error(),
	})
}
