package locker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/outermost"
	"github.com/latchkit/latchkit/internal/store"
)

// errWaitOver is the reason when Rule.Wait has passed. giveUp turns it into an error for the
// caller.
var errWaitOver = errors.New("the wait is over")

// mindOrder prevents a RunAll from waiting for itself, or for a caller that may wait for the
// RunAll: no circle of waits can form if every caller waits only for keys that sort after all keys
// that it holds. So an acquire of an earlier key does not wait. The lease of an idempotent request
// does not count, because nobody waits for it while holding another one, except as a stripe.
func (w *waiter) mindOrder(ctx context.Context) error {
	t := takesIn(ctx)
	if t == nil {
		return nil
	}
	key := w.key()
	for _, l := range t.allLeases(ctx) {
		switch {
		case l.engine != w.engine || l.state.endError() != nil:
		case l.hold.claim.Key == key && l.Mode() == Shared && w.rule.Mode == Shared: // the caller reads with the same hold
		// Another caller may hold units too, and wait for the units of this caller.
		case l.hold.claim.Key == key && l.rule.Limit > 0 && w.rule.Limit > 0:
			w.laterKey, w.rule.Wait = l.rule.Key, NoWait
		case l.hold.claim.Key == key:
			return fmt.Errorf("%w, by a lease in the context that RunAll got; leave the key out, or take both through a Locker of NewReentrant", ErrSelfDeadlock)
		case l.hold.claim.Key > key && !l.isOfRequest(ctx):
			w.laterKey, w.rule.Wait = l.rule.Key, NoWait
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
	all := LeasesFromContext(ctx)
	return len(all) > 0 && l == all[len(all)-1]
}

// checkNested refuses an acquire that would wait for its own caller, whose context holds the key,
// and one with Shared if the Store has no readers. outer is the lease under which the caller
// already reads, or nil.
func (w *waiter) checkNested() (outer *Lease, err error) {
	if w.rule.Mode == Shared && !w.engine.can.Readers {
		return nil, fmt.Errorf("%w: Mode Shared needs a Locker with readers, such as one of NewReadWrite", ErrUnsupported)
	}
	units, limit := 0, w.rule.Limit // of a semaphore, where the caller takes further units with a permit of its own
	for l := range leasesIn(w.ctx) {
		if l.engine != w.engine || l.hold.claim.Key != w.key() || l.state.endError() != nil {
			continue
		}
		if l.rule.Limit == 0 || w.rule.Limit == 0 {
			return l, waitsForItself(l, w.rule)
		}
		units, limit = units+l.rule.Weight, min(limit, l.rule.Limit)
	}
	if units > 0 && units+w.rule.Weight > limit {
		return nil, fmt.Errorf("%w, %d of its %d units, so a wait for %d more would never end; take all units at once with Weight, "+
			"or give locker.Detach(ctx) to a goroutine that must wait for its turn", ErrSelfDeadlock, units, limit, w.rule.Weight)
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
			"release the Shared lease first, or take the key Exclusive from the start", ErrSelfDeadlock)
	}
	return nil
}

// handleError acts on err, the error of a question. A waiter that has seen a holder may always ask
// again.
func (w *waiter) handleError(err error) state {
	p := w.place
	no, refused := errors.AsType[*store.Refusal](err)
	switch {
	case errors.Is(err, store.ErrNotReplicated): // the server has written the grant: the next leader takes it, or it is undone
		p.token.endCall(callLost)
		return w.end(nil, w.fail(err, 0))
	case !refused:
		p.token.endCall(callLost)
	case !no.Temporary:
		p.token.endCall(callRefused)
		return w.end(nil, w.fail(asUnavailable(err), 0))
	default:
		p.token.endCall(callRefused)
	}
	return w.handleNoAnswer(err)
}

// handleNoAnswer acts on err, the error of a question without an answer. A caller that has seen no
// holder may ask again until unansweredFor has passed, also with NoWait; while the key's data moves
// to another server, a waiter may do so after that.
func (w *waiter) handleNoAnswer(err error) state {
	w.failure = err
	if w.cohort != nil {
		w.engine.cohorts.noteFailure(w)
	}
	moves := errors.Is(err, store.ErrMoving) && w.rule.Wait != NoWait
	if w.busySince.IsZero() && w.overdue() && !moves {
		return w.end(nil, w.fail(asUnavailable(w.explainFailure()), 0))
	}
	return queued
}

// overdue reports whether the caller has waited too long for the first answer.
func (w *waiter) overdue() bool {
	bound := unansweredFor
	if w.rule.Wait > 0 {
		bound = min(bound, w.rule.Wait)
	}
	return time.Since(w.began) >= bound
}

// neverAnswered reports whether the acquire failed before the server gave its first answer.
func (w *waiter) neverAnswered() bool {
	return w.busySince.IsZero() && errors.Is(w.err, ErrUnavailable)
}

// giveUp ends the wait because of reason. The returned error contains reason. It also contains
// ErrBusy if a holder was seen, or ErrUnavailable if the server gave no answer.
func (w *waiter) giveUp(reason error) error {
	seen := !w.busySince.IsZero()
	switch {
	case reason == ErrClosed:
		return w.fail(ErrClosed, 0)
	// The last call failed, so the holder that was seen before may have left.
	case seen && reason == errWaitOver && !w.place.current && w.failure != nil:
		return w.fail(asUnavailable(w.failure), 0)
	case seen && reason == errWaitOver && w.laterKey == w.rule.Key:
		return w.fail(fmt.Errorf("%w; this caller did not wait, because it already holds units of this key, and two such callers could wait for each other; take all units at once, with a larger Weight", ErrBusy), w.retryAfter())
	case seen && reason == errWaitOver && w.laterKey != "":
		err := w.fail(fmt.Errorf("%w; this caller did not wait, because it already holds a key that sorts behind this key, and two such callers could deadlock; acquire all keys in one RunAll", ErrBusy), w.retryAfter())
		if e, ok := err.(*Error); ok { //nolint:errorlint // fail has just made it
			e.held = w.laterKey
		}
		return err
	case seen && reason == errWaitOver && w.alreadyReads:
		return w.fail(fmt.Errorf("%w; this caller did not wait, because it already reads under the key, and a waiting writer waits for this caller; set EndAfter and OnceFor on the outer lease", ErrBusy), w.retryAfter())
	case seen && reason == errWaitOver:
		return w.fail(ErrBusy, w.retryAfter())
	case seen:
		return w.fail(fmt.Errorf("%w: %w", reason, ErrBusy), w.retryAfter())
	case reason == errWaitOver && w.explainFailure() != nil:
		return w.fail(asUnavailable(w.explainFailure()), 0)
	case reason == errWaitOver:
		return w.fail(fmt.Errorf("%w: no answer within the wait of %v", ErrUnavailable, w.rule.Wait), 0)
	case errors.Is(reason, context.DeadlineExceeded):
		return w.fail(fmt.Errorf("%w: %w", reason, asUnavailable(cmp.Or(w.explainFailure(), errNoAnswer))), 0)
	}
	return w.fail(reason, 0)
}

// explainFailure returns the error of the last call. If the last call got no answer and the Store
// knows why, explainFailure returns the Store's reason.
func (w *waiter) explainFailure() error {
	explain := w.engine.can.Explain
	if explain != nil && (w.failure == nil || w.failure == errNoAnswer || errors.Is(w.failure, context.DeadlineExceeded)) {
		if err := explain(w.key()); err != nil {
			return err
		}
	}
	return w.failure
}

// fail returns err as the Error of this acquire. If retryAfter is 0, the RetryAfter of err is used,
// if it has one.
func (w *waiter) fail(err error, retryAfter time.Duration) error {
	if err == ErrClosed {
		return errClosed(w.rule.Key)
	}
	e := &Error{Op: OpAcquire, Key: w.rule.Key, RetryAfter: retryAfter, Err: err}
	var later interface{ RetryAfter() time.Duration }
	if retryAfter > 0 {
		e.HolderMetadata, e.blocked = unsigned(w.place.holder.Metadata), w.blocked()
	} else if errors.As(err, &later) {
		e.RetryAfter = later.RetryAfter()
	}
	return e
}

// blocked returns what a refused caller knows of the holder. A semaphore has several holders, whose
// fences are not known.
func (w *waiter) blocked() blocked {
	b := blocked{holder: w.place.holder, ahead: w.ahead}
	if w.rule.Limit > 0 {
		b.holder.Fence = 0
	}
	if !w.heldSince.IsZero() {
		b.held = time.Since(w.heldSince)
	}
	if w.engine.can.Inspect != nil {
		b.command = showCommand(w.key())
	}
	return b
}

// outcome returns the outcome for the Observer, when the acquire returns l and err.
func (w *waiter) outcome(l *Lease, err error) Outcome {
	o := Outcome{
		Result: resultOf(OpAcquire, err), Err: err, Calls: w.calls, Rounds: w.rounds, HolderMetadata: unsigned(w.place.holder.Metadata),
		TTL: w.rule.leaseTTL(),
	}
	if l != nil {
		o.Fence = l.fence
	}
	if !w.busySince.IsZero() {
		o.Waited = time.Since(w.busySince)
	}
	w.record.copyTo(&o)
	if o.Result == ResultBusy && w.rule.Wait != NoWait {
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

// retryAfter returns the time after which another try may succeed: an estimate with jitter, so that
// callers that were refused together do not ask again together. The remaining TTL says little,
// because the lease is renewed, except for a key that Rule.KeepFor keeps locked.
func (w *waiter) retryAfter() time.Duration {
	if w.place.holder.Kept && w.place.holder.Left > 0 {
		return w.place.holder.Left
	}
	after := min(w.remaining(), maxRetryAfter)
	after += rand.N(after/4 + 1)
	return max(after, time.Millisecond)
}

// remaining estimates how long it takes until the caller could have the key: the time that the
// holder still needs, plus at most maxRetryAfter for the waiters ahead. A holder is expected to
// hold the key as long as earlier holders of this Name in this process did; if it already did for
// longer, for half as long again; if there were none, for as long again.
func (w *waiter) remaining() time.Duration {
	var held time.Duration
	if !w.heldSince.IsZero() {
		held = max(time.Since(w.heldSince), 0)
	}
	guess := max(held, firstGuess)
	rest, each := guess, 2*guess
	if usual := w.engine.times.meanHold(w.rule.Name); usual > 0 {
		each = max(usual, held)
		if rest = usual - held; rest <= usual/8 {
			rest = max(held/2, usual/8)
		}
	}
	if w.place.holder.Left >= 0 {
		rest = min(rest, w.place.holder.Left)
	}
	ahead, turn := int64(max(w.place.position-1, 0)), int64(each)/int64(w.rule.maxHolders())
	if ahead > 0 && turn > int64(maxRetryAfter)/ahead {
		return maxRetryAfter // the product could overflow
	}
	return rest + time.Duration(turn*ahead)
}

// holdsSince returns the local time at which the holder h got the key. clock is the server's clock
// in an answer that names h, to a question that was sent at sentAt. On one server, a fence is the
// server's clock at the grant, unless the counter ran ahead of the clock.
func holdsSince(h store.Holder, clock, sentAt time.Time) time.Time {
	if h.Foreign || h.Fence == 0 || clock.IsZero() {
		return time.Time{}
	}
	held := clock.Sub(time.UnixMicro(int64(h.Fence)))
	if held < 0 || held > longestTime {
		return time.Time{}
	}
	return sentAt.Add(-held)
}
