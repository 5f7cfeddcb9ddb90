package locker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"sync"
	"time"
)

// A Lease is one caller's use of a lock, from the grant to the release or the loss. It is safe for
// concurrent use, and its zero value is not usable. The context of a Lease ends when the work must
// stop. The lease itself can last longer: Engine.Close renews it until the work has stopped.
type Lease struct {
	engine  *Engine
	hold    *hold
	rule    Rule // the Rule with all defaults filled in
	fence   uint64
	base    context.Context // the caller's context, with the Observer's values for the hold
	endHold func(Outcome)
	family  *family // nil unless the Lease is one of several uses of a hidden Lease
	state   leaseState
}

// init makes l the Lease of w. The Lease uses h and the given fence, which is one of the
// fences in h's block.
func (l *Lease) init(w *waiter, h *hold, fence uint64) {
	l.engine, l.hold, l.rule, l.fence = w.engine, h, w.rule, fence
	l.state.began = time.Now()
	l.engine.holders.Join() // succeeds, because the call of Acquire is counted; notifyObserver ends it
	l.base, l.endHold = w.engine.cfg.observe(w.ctx, OpHold, w.rule)
}

// String returns, for example, "lease of order:42, fence 1763688000123456". It never shows the
// owner's token.
func (l *Lease) String() string { return fmt.Sprintf("lease of %s, fence %d", l.rule.Key, l.fence) }

// Format prints the result of String for every verb, so that no %+v shows the token.
func (l *Lease) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, l.String()) }

// Key returns the key as the Rule has it, without the Locker's prefix.
func (l *Lease) Key() string { return l.rule.Key }

// Mode returns the Rule's mode.
func (l *Lease) Mode() Mode { return l.rule.Mode }

// Units returns how many units of a semaphore the lease holds. It is 0 for all other leases.
func (l *Lease) Units() int { return l.rule.Weight }

// Fence returns a number that grows with every grant of the key, also when a lease is handed over
// inside a process. All readers of one phase have the same fence. Pass the fence to the database
// that the lock protects, which must refuse a fence that is smaller than the largest that it has
// seen. Then a holder that was paused until after the end of its lease can do no harm. This does
// not work for a semaphore: several holders may write at the same time, and the fences of permits
// do not grow in the order of the grants. Fence returns 0 only if the Store cannot make fences.
func (l *Lease) Fence() uint64 { return l.fence }

// TTL returns the Rule's TTL, or the default in its place. A grant or a renewal lasts this long, or as
// long as Extend has asked for.
func (l *Lease) TTL() time.Duration { return l.rule.TTL }

// Expires returns the time at which the lease ends unless it is renewed, on the local monotonic
// clock. Before that time, the server does not give the key to another holder. For a lease that has
// ended, Expires returns when it ended.
func (l *Lease) Expires() time.Time {
	deadline := l.hold.renewal.deadline.load().time()
	if ended := l.state.endTime(); !ended.IsZero() && ended.Before(deadline) {
		return ended
	}
	return deadline
}

// Context returns a context that ends with the lease. It has the values of the context given to
// Acquire, but not its cancellation. After the end, context.Cause returns the reason: ErrReleased,
// or an [*Error] for ErrLost, ErrRevoked, ErrExpired or ErrClosed.
func (l *Lease) Context() context.Context {
	s := &l.state
	s.mu.Lock()
	own := s.own
	s.mu.Unlock()
	if own != nil {
		return own
	}
	made := l.within(context.WithoutCancel(l.base))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = cmp.Or(s.own, made) // the one that was made first
	return s.own
}

// within returns a context like parent that has l as its innermost lease, and ends with l.
func (l *Lease) within(parent context.Context) context.Context {
	return &leaseContext{l.state.derive(parent), heldList{lease: l, outer: heldIn(parent)}}
}

// lose ends the Lease for the given reason, which is not a release. It returns false when the Lease
// had ended before.
func (l *Lease) lose(reason error) bool {
	if !l.state.end(l.wrap(OpHold, reason)) {
		return false
	}
	l.engine.calls.Do(func() { l.notifyObserver(reason) }) // a slow Observer does not delay the keeper
	return true
}

// notifyObserver notifies the Observer, once, that the hold ended for the given reason; nil means a
// release. On a loss, the contexts end first, so that no Observer can delay that. A Release calls
// it before it returns.
func (l *Lease) notifyObserver(reason error) {
	l.state.notified.Do(func() {
		if l.family == nil {
			defer l.engine.holders.Leave()
		}
		finish(l.endHold, l.outcome(OpHold, reason))
	})
}

// wrap returns err as an Error with op and the key. If err is an Error already, wrap replaces its
// operation and its key.
func (l *Lease) wrap(op Op, err error) error {
	if inner, ok := errors.AsType[*Error](err); ok {
		err = inner.Err
	}
	return &Error{Op: op, Key: l.rule.Key, Err: err}
}

// Observe notifies the Locker's Observer that op begins under this lease. It returns the context
// that the Observer made of ctx, and a function that must be called once when op has ended, and
// that sets the Fence of the Outcome. Observe is for adapters, such as package sqllock.
func (l *Lease) Observe(ctx context.Context, op Op) (context.Context, func(Outcome)) {
	ctx, end := l.engine.cfg.observe(ctx, op, l.rule)
	return ctx, func(o Outcome) {
		o.Fence = l.fence
		finish(end, o)
	}
}

func (l *Lease) outcome(op Op, err error) Outcome {
	o := Outcome{Result: resultOf(op, err), Err: err, Fence: l.fence, TTL: l.engine.keeper.renewalTTL(l.hold)}
	if op == OpHold {
		o.Cause = wordFor(err, losses, "")
	}
	return o
}

type leaseKey struct{}

// heldList is a linked list of the leases in a context, the innermost first. It also has an element
// for each RunAll that was still taking its leases when the context was made.
type heldList struct {
	lease *Lease
	takes *takeState // exactly one of takes and lease is set
	outer *heldList
}

// heldIn returns the innermost element of the list in ctx, or nil when ctx has no list.
func heldIn(ctx context.Context) *heldList {
	h, _ := ctx.Value(leaseKey{}).(*heldList)
	return h
}

// leasesIn returns the leases in the list of ctx, the innermost first.
func leasesIn(ctx context.Context) iter.Seq[*Lease] {
	return func(yield func(*Lease) bool) {
		for h := heldIn(ctx); h != nil; h = h.outer {
			if h.lease != nil && !yield(h.lease) {
				return
			}
		}
	}
}

// leaseContext is a context that ends with leases. The keeper's goroutine ends it when a lease is
// over. But after a pause of the process, the holder's goroutine may run before the keeper's. So
// each look at the context compares the deadlines of its leases with the clock, and ends those that
// are over. context.Cause looks by calling Value.
type leaseContext struct {
	context.Context // made by leaseState.derive
	held            heldList
}

func (c *leaseContext) Err() error {
	c.endOverdue()
	return c.Context.Err()
}

func (c *leaseContext) Done() <-chan struct{} {
	c.endOverdue()
	return c.Context.Done()
}

func (c *leaseContext) Value(key any) any {
	if _, own := key.(leaseKey); own {
		return &c.held
	}
	c.endOverdue()
	return c.Context.Value(key)
}

// endOverdue ends the leases of c whose time is over. Code that holds one of the Engine's mutexes
// must not look at a context, because endOverdue locks them.
func (c *leaseContext) endOverdue() {
	if c.Context.Err() != nil {
		return
	}
	if looked := c.held.lease.engine.can.Looked; looked != nil {
		looked()
	}
	now := instantOf(time.Now())
	for h := &c.held; h != nil; h = h.outer {
		if h.lease != nil && h.lease.isOverdue(now) {
			h.lease.endOverdue(now)
		}
	}
}

// isOverdue reports whether the time of l is over. The result is also true if l was released before
// its time was over.
func (l *Lease) isOverdue(now instant) bool {
	return now >= l.hold.renewal.deadline.load()
}

// endOverdue ends l if its time is over. The cleaning up, which may need locks of the caller, is
// left to another goroutine.
func (l *Lease) endOverdue(now instant) {
	root := l.root()
	h, users, reason, removed := root.engine.keeper.takeOverdue(root)
	for _, user := range users {
		user.lose(reason)
	}
	if removed {
		root.engine.calls.Do(func() { h.handleLoss(users, reason, true) })
	}
}

// FromContext returns the innermost lease from which ctx was derived: the lease of the [Run] around
// the caller. Inside a [RunAll], FromContext returns the lease whose key sorts last.
func FromContext(ctx context.Context) (*Lease, bool) {
	for l := range leasesIn(ctx) {
		return l, true
	}
	return nil, false
}

// LeasesFromContext returns all leases from which ctx was derived, the innermost first, also those
// that have been released or lost since.
func LeasesFromContext(ctx context.Context) []*Lease {
	return slices.Collect(leasesIn(ctx))
}

// Detach returns a context with the values of ctx, but without its leases, its deadline and its
// cancellation, for a goroutine that outlives the [Run] that started it. Such a goroutine does not
// count as a holder: when it acquires the same key, it waits, and is not refused as a
// self-deadlock.
func Detach(ctx context.Context) context.Context {
	return context.WithValue(context.WithoutCancel(ctx), leaseKey{}, (*heldList)(nil))
}

// leaseState is what changes of a Lease. Usually the hold and the contexts end together. While the
// Engine is closing, the contexts end before the hold. The release follows, also after a loss.
type leaseState struct {
	// mu guards all other fields except notified, began, ending and released. released is written by
	// the first Release only, and read after ending.
	mu       sync.Mutex
	notified sync.Once // ensures that the Observer is notified of the hold's end only once

	began   time.Time                 // when the Lease got the hold
	endErr  error                     // nil while held; then ErrReleased, or how the lease was lost
	lasted  time.Duration             // how long the Lease was held: from began until endErr was set
	cause   error                     // nil until the contexts end
	cancels []context.CancelCauseFunc // the cancel functions of the contexts derived from this lease
	own     context.Context           // the context that the first call of Context made

	releases bool           // Release was called
	released error          // what Release returned
	ending   sync.WaitGroup // ends when Release has its result
}

// derive returns a context like parent that ends with the lease.
func (s *leaseState) derive(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	s.onEnd(cancel)
	return ctx
}

// onEnd calls f with the cause when the contexts end, or at once if they have ended.
func (s *leaseState) onEnd(f func(cause error)) {
	s.mu.Lock()
	if s.cause == nil {
		s.cancels = append(s.cancels, f)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	f(s.cause)
}

// end ends the hold and the contexts for the given reason. The first call decides the reason and
// returns true; later calls return false. After each call the contexts have ended.
func (s *leaseState) end(reason error) bool {
	s.mu.Lock()
	first := s.endErr == nil
	if first {
		s.endErr, s.lasted = reason, time.Since(s.began)
	}
	reason = s.endErr
	s.mu.Unlock()
	s.cancel(reason)
	return first
}

// cancel ends the contexts with the given cause. Only the cause of the first call counts. Calls at
// the same time all cancel the contexts, so that each returns when the contexts have ended.
func (s *leaseState) cancel(cause error) {
	s.mu.Lock()
	if s.cause == nil {
		s.cause = cause
	}
	cause = s.cause
	cancels := s.cancels
	s.mu.Unlock()
	if len(cancels) == 0 {
		return
	}
	for _, cancel := range cancels {
		cancel(cause)
	}
	s.mu.Lock()
	s.cancels = nil
	s.mu.Unlock()
}

// contextCause returns why the contexts have ended: how the hold ended, or ErrClosed. It returns
// nil while the contexts have not ended.
func (s *leaseState) contextCause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// endError returns how the hold ended, or nil if the hold is still held.
func (s *leaseState) endError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endErr
}

// endTime returns when the hold ended, or the zero time if the hold is still held.
func (s *leaseState) endTime() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endErr == nil {
		return time.Time{}
	}
	return s.began.Add(s.lasted)
}

// beginRelease returns true for the first call. Each later call waits until the release has ended,
// and returns false.
func (s *leaseState) beginRelease() bool {
	s.mu.Lock()
	again := s.releases
	if s.releases = true; !again {
		s.ending.Add(1)
	}
	s.mu.Unlock()
	if again {
		s.ending.Wait() // for releaseWithin at the longest
	}
	return !again
}
