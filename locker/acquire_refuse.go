package locker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/outermost"
	"github.com/latchkit/latchkit/internal/store"
)

// unansweredFor is the longest time for which an acquire is repeated while the server has not yet
// answered whether the key is held.
const unansweredFor = time.Second

// errWaitOver is the reason when Rule.Wait has passed. giveUp turns it into an error for the
// caller.
var errWaitOver = errors.New("the wait is over")

// mindOrder prevents a RunAll from waiting for itself, or for a caller that may wait for the
// RunAll. No circle of waits can form if every caller waits only for keys that sort after all keys
// that it holds. So an acquire of an earlier key makes one attempt, and does not wait. The lease of
// an idempotent request does not count, because nobody waits for it while holding another one. But
// on a Locker of NewStriped, this lease may be the lease of another key too.
func (c *caller) mindOrder(ctx context.Context) error {
	t := takesIn(ctx)
	if t == nil {
		return nil
	}
	key := c.key()
	for _, l := range t.allLeases(ctx) {
		switch {
		case l.engine != c.engine || l.state.endError() != nil:
		case l.hold.claim.Key == key && l.Mode() == Shared && c.rule.Mode == Shared: // the caller reads with the same hold
		// Another caller may hold units too, and wait for the units of this caller.
		case l.hold.claim.Key == key && l.rule.Limit > 0 && c.rule.Limit > 0:
			c.laterKey, c.rule.Wait = l.rule.Key, NoWait
		case l.hold.claim.Key == key:
			return fmt.Errorf("%w, by a lease in the context that RunAll got; leave the key out, or take both through a Locker of NewReentrant", ErrSelfDeadlock)
		case l.hold.claim.Key > key && !l.isOfRequest(ctx):
			c.laterKey, c.rule.Wait = l.rule.Key, NoWait
		}
	}
	return nil
}

// isOfRequest reports whether l is the lease of the idempotent request to which ctx belongs, and of
// no other key.
func (l *Lease) isOfRequest(ctx context.Context) bool {
	if !outermost.Is(ctx, l.rule.Key) || l.hold.claim.Key != l.engine.cfg.prefix+l.rule.Key {
		return false
	}
	var first *Lease
	for h := heldIn(ctx); h != nil; h = h.outer {
		if h.lease != nil {
			first = h.lease
		}
	}
	return l == first
}

// checkNested checks whether the caller's context holds this key already. It refuses an acquire
// that would wait for its own caller, and an acquire with Shared if the Store has no readers. The
// result outer is the lease under which the caller already reads, or nil.
func (c *caller) checkNested() (outer *Lease, err error) {
	readers := c.engine.can.Downgrade != nil
	if !readers && c.rule.Mode == Shared {
		return nil, fmt.Errorf("%w: Mode Shared needs a Locker with readers, such as one of NewReadWrite", ErrUnsupported)
	}
	units, limit := 0, c.rule.Limit // of a semaphore, where the caller takes further units with a permit of its own
	for h := heldIn(c.ctx); h != nil; h = h.outer {
		l := h.lease
		if l == nil || l.engine != c.engine || l.rule.Key != c.rule.Key || l.state.endError() != nil {
			continue
		}
		if l.rule.Limit == 0 || c.rule.Limit == 0 {
			return l, waitsForItself(l, c.rule)
		}
		units, limit = units+l.rule.Weight, min(limit, l.rule.Limit)
	}
	if units > 0 && units+c.rule.Weight > limit {
		return nil, fmt.Errorf("%w, %d of its %d units, so a wait for %d more would never end; take all units at once with Weight, "+
			"or give locker.Detach(ctx) to a goroutine that must wait for its turn", ErrSelfDeadlock, units, limit, c.rule.Weight)
	}
	return nil, nil
}

// waitsForItself returns ErrSelfDeadlock if an acquire with rule would wait for held, a lease of
// the same key in the context of the acquire.
func waitsForItself(held *Lease, rule Rule) error {
	switch {
	case held.Mode() == Exclusive:
		return fmt.Errorf("%w, so a wait for it would never end; "+
			"wrap the Locker with NewReentrant to enter again, use sqllock's Within for a transaction under the lease that is held, "+
			"or give locker.Detach(ctx) to a goroutine that must wait for its turn", ErrSelfDeadlock)
	case rule.Mode == Exclusive:
		return fmt.Errorf("%w as a reader, and two readers that wait to write would deadlock; "+
			"release the Shared lease first, or take the key Exclusive from the start and Downgrade", ErrSelfDeadlock)
	}
	return nil
}

// handleError handles err, the error of a call of the Store. It returns nil if the caller may ask
// again.
func (a *acquisition) handleError(err error) error {
	var no *store.Refusal
	switch {
	case errors.Is(err, store.ErrNotReplicated): // the server has written the grant, so it must be undone
		a.ticket.token.endCall(callLost)
		return a.fail(err, 0)
	case !errors.As(err, &no):
		a.ticket.token.endCall(callLost)
	case !no.Temporary:
		a.ticket.token.endCall(callRefused)
		return a.fail(asUnavailable(err), 0)
	default:
		a.ticket.token.endCall(callRefused)
	}
	return a.handleNoAnswer(err)
}

// handleNoAnswer handles err, the error of a call without an answer. It returns nil if the caller
// may ask again. A waiter that has seen a holder may always ask again. A caller that has seen no
// holder may ask again until unansweredFor has passed, also with NoWait, because then nobody knows
// whether there is a holder. During a move of the key's data to another server, a waiter may also
// ask again after that.
func (a *acquisition) handleNoAnswer(err error) error {
	a.waiting.failure = err
	if a.cohort != nil {
		a.caller.engine.cohorts.noteFailure(a)
	}
	moves := errors.Is(err, store.ErrMoving) && a.caller.rule.Wait != NoWait
	if a.waiting.busySince.IsZero() && a.caller.overdue() && !moves {
		return a.fail(asUnavailable(err), 0)
	}
	return nil
}

// overdue reports whether the caller has waited too long for the first answer.
func (c *caller) overdue() bool {
	bound := unansweredFor
	if c.rule.Wait > 0 {
		bound = min(bound, c.rule.Wait)
	}
	return time.Since(c.began) >= bound
}

// neverAnswered reports whether the acquire failed with err before the server gave its first
// answer.
func (w *waiting) neverAnswered(err error) bool {
	return w.busySince.IsZero() && errors.Is(err, ErrUnavailable)
}

// giveUp ends the wait because of reason. The returned error contains reason. It also contains
// ErrBusy if a holder was seen, or ErrUnavailable if the server gave no answer.
func (a *acquisition) giveUp(reason error) error {
	seen := !a.waiting.busySince.IsZero()
	switch {
	case reason == ErrClosed:
		return a.fail(ErrClosed, 0)
	// The last call failed, so the holder that was seen before may have left.
	case seen && reason == errWaitOver && !a.ticket.current && a.waiting.failure != nil:
		return a.fail(asUnavailable(a.waiting.failure), 0)
	case seen && reason == errWaitOver && a.caller.laterKey == a.caller.rule.Key:
		return a.fail(fmt.Errorf("%w; this caller did not wait, because it already holds units of this key, and two such callers could wait for each other; take all units at once, with a larger Weight", ErrBusy), a.retryAfter())
	case seen && reason == errWaitOver && a.caller.laterKey != "":
		err := a.fail(fmt.Errorf("%w; this caller did not wait, because it already holds a key that sorts behind this key, and two such callers could deadlock; acquire all keys in one RunAll", ErrBusy), a.retryAfter())
		if e, ok := err.(*Error); ok { //nolint:errorlint // fail has just made it
			e.held = a.caller.laterKey
		}
		return err
	case seen && reason == errWaitOver && a.caller.alreadyReads:
		return a.fail(fmt.Errorf("%w; this caller did not wait, because it already reads under the key, and a waiting writer waits for this caller; set KeepFor, EndAfter and OnceFor on the outer lease", ErrBusy), a.retryAfter())
	case seen && reason == errWaitOver:
		return a.fail(ErrBusy, a.retryAfter())
	case seen:
		return a.fail(fmt.Errorf("%w: %w", reason, ErrBusy), a.retryAfter())
	case reason == errWaitOver && a.waiting.explainFailure(a.caller.engine) != nil:
		return a.fail(asUnavailable(a.waiting.explainFailure(a.caller.engine)), 0)
	case reason == errWaitOver:
		return a.fail(fmt.Errorf("%w: no answer within the wait of %v", ErrUnavailable, a.caller.rule.Wait), 0)
	case errors.Is(reason, context.DeadlineExceeded) && a.waiting.calls > 0:
		return a.fail(fmt.Errorf("%w: %w: no answer in time", reason, ErrUnavailable), 0)
	}
	return a.fail(reason, 0)
}

// explainFailure returns the error of the last call. If the last call got no answer and the Store
// knows why, explainFailure returns the Store's reason.
func (w *waiting) explainFailure(e *Engine) error {
	if e.can.Explain != nil && (w.failure == nil || w.failure == errNoAnswer) {
		if err := e.can.Explain(); err != nil {
			return err
		}
	}
	return w.failure
}

// fail returns err as the Error of this acquire. If retryAfter is 0, the RetryAfter of err is used,
// if it has one.
func (a *acquisition) fail(err error, retryAfter time.Duration) error {
	if err == ErrClosed {
		return errClosed(a.caller.rule.Key)
	}
	e := &Error{Op: OpAcquire, Key: a.caller.rule.Key, RetryAfter: retryAfter, Err: err}
	var later interface{ RetryAfter() time.Duration }
	if retryAfter > 0 {
		e.HolderMetadata, e.blocked = unsigned(a.ticket.holder.Metadata), a.blocked()
	} else if errors.As(err, &later) {
		e.RetryAfter = later.RetryAfter()
	}
	return e
}

// blocked returns what a refused caller knows of the holder. A semaphore has several holders, whose
// fences are not known.
func (a *acquisition) blocked() blocked {
	b := blocked{holder: a.ticket.holder, ahead: a.waiting.ahead}
	if a.caller.rule.Limit > 0 {
		b.holder.Fence = 0
	}
	if !a.waiting.heldSince.IsZero() {
		b.held = time.Since(a.waiting.heldSince)
	}
	if a.caller.engine.can.Inspect != nil {
		b.command = showCommand(a.caller.key())
	}
	return b
}

// outcome returns the outcome for the Observer, when the acquire returns l and err.
func (a *acquisition) outcome(l *Lease, err error) Outcome {
	o := Outcome{
		Result: resultOf(OpAcquire, err), Err: err, Calls: a.waiting.calls, Rounds: a.waiting.rounds, HolderMetadata: unsigned(a.ticket.holder.Metadata),
		TTL: a.caller.rule.leaseTTL(), Expected: a.waiting.expected,
	}
	if l != nil {
		o.Fence = l.fence
	}
	if !a.waiting.busySince.IsZero() {
		o.Waited = time.Since(a.waiting.busySince)
	}
	a.waiting.sighting.copyTo(&o)
	if o.Result == ResultBusy && a.caller.rule.Wait != NoWait {
		o.Result = ResultTimeout
	}
	return o
}

// asUnavailable returns err, the error of a Store, with ErrUnavailable added, unless err has a more
// precise sentinel.
func asUnavailable(err error) error {
	for _, known := range []error{ErrUnavailable, ErrInvalidKey, ErrUnsupported} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func revokedBecause(reason string) error {
	if reason == "" {
		return ErrRevoked
	}
	return fmt.Errorf("%w: %s", ErrRevoked, reason)
}

// waiters counts the waiters in this process for each key.
type waiters struct {
	mu sync.Mutex
	n  map[string]int
}

// enter counts one more waiter for key. If the key already has as many waiters as the parameter
// most, enter returns false.
func (w *waiters) enter(key string, most int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if most > 0 && w.n[key] >= most {
		return false
	}
	if w.n == nil {
		w.n = make(map[string]int)
	}
	w.n[key]++
	return true
}

// dismiss counts one waiter less for key.
func (w *waiters) dismiss(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.n[key]--; w.n[key] == 0 {
		delete(w.n, key)
	}
}
