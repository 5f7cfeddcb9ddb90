package idempotency

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/exclusive"
	"github.com/latchkit/latchkit/internal/outermost"
	"github.com/latchkit/latchkit/locker"
)

const (
	defaultLifetime     = 24 * time.Hour
	defaultFinishWithin = time.Minute
)

// A Keeper runs each request once. Its zero value is not usable: Locker and Store must be set.
//
//	keeper := idempotency.Keeper{Locker: l, Store: idempotency.NewRedis(client)}
//
// A second request waits for the first one until its ctx ends, or for Rule.Wait, and gets the
// answer of the first. A refused request gets locker.ErrBusy, [ErrReused], locker.ErrUnavailable or
// [ErrStore].
type Keeper struct {
	_ struct{} // keyed literals only

	// Locker prevents two runs of the same request at the same time.
	Locker locker.Locker
	// Store keeps the answers.
	Store Store
	// Lifetime is how long an answer is stored. 0: 24 h.
	Lifetime time.Duration
	// FinishWithin is how long the work may continue after ctx has ended, because the client has
	// disconnected. 0: 1 min.
	FinishWithin time.Duration
}

// A Request is one request on its way through a [Keeper].
type Request struct {
	// Rule describes the lock. Rule.Key also names the request's Record. Put the identity of
	// the customer and the client's key into it, for example with key.Of("idempotency",
	// customer, clientKey). Lock this key in no other way. The lock has one holder: Mode, Limit
	// and Weight are ignored, and so is the n of a Locker of NewSemaphore.
	Rule locker.Rule
	// Content distinguishes this request from another request with the same key. The Store keeps
	// only a hash of it.
	Content [][]byte
}

// An Outcome is the result of the work.
type Outcome struct {
	// Response is the answer.
	Response Response
	// Keep makes the Keeper store the answer. Without Keep, the next request with the same key runs
	// again.
	Keep bool
	// DoneOnly, together with Keep, makes the Keeper store only that the work is done, without the
	// Response.
	DoneOnly bool
	// Failed means that the work must count as not done: a [Transactor] rolls back, and
	// Rule.OnceFor does not mark the work as done.
	Failed bool
}

// An Answer is what Do returns.
type Answer struct {
	Response Response
	// Replayed reports whether Response is the stored answer of an earlier request.
	Replayed bool
}

// ErrNotStored means that the work was done, but its answer could not be stored. Do returns the
// answer together with this error. If the client repeats the request, the work can run a second
// time.
var ErrNotStored = errors.New("the answer could not be stored")

// ErrUnfinished is the cause of the work's context when the client has disconnected and the work
// was not done within Keeper.FinishWithin.
var ErrUnfinished = errors.New("the client has disconnected, and the work did not finish in the allowed time")

// errFailed is what Do's function returns to locker.Run so that the lease is released without a
// done mark.
var errFailed error = failed{}

type failed struct{}

func (failed) Error() string { return "the work failed" }

// ErrorType says to traces that a transaction which the work did not want is no error of the lock.
func (failed) ErrorType() string { return "" }

// Do returns the stored answer to req, or calls work once under req.Rule's lock and stores the
// outcome. The end of ctx ends the lookup and the wait for the lock, but not the work: see
// Keeper.FinishWithin. The context of the work has the values of ctx.
//
// Before the work, Do can return the errors of locker.Acquire, [ErrReused] and [ErrOvertaken]. It
// returns locker.ErrDone when the work was done and its answer was not stored, and [ErrStore] when
// the Store fails. After the work, Do returns locker.ErrLost or
// locker.ErrExpired when the lease ended first, and ErrOvertaken when another run of the request
// has begun. If the answer could not be stored, Do returns [ErrNotStored] together with the answer.
// If a transaction cannot be committed, Do returns the error of the commit.
func (k Keeper) Do(ctx context.Context, req Request, work func(ctx context.Context) Outcome) (Answer, error) {
	r := run{Keeper: k, Request: req, work: work, fingerprint: fingerprint(req.Content)}
	var err error
	if r.seen, err = k.Store.Load(ctx, req.Rule.Key); err != nil {
		return Answer{}, unavailable(ctx, err)
	}
	if final, err := r.judge(); final {
		return r.answer, err
	}
	if len(locker.LeasesFromContext(ctx)) == 0 {
		ctx = outermost.With(ctx, req.Rule.Key)
	}
	err = locker.Run(ctx, k.Locker, exclusive.Rule(k.Locker, req.Rule), r.underLock)
	if errors.Is(err, errFailed) && !errors.Is(err, locker.ErrLost) && !errors.Is(err, locker.ErrExpired) {
		err = nil
	}
	if err == nil {
		err = r.unsaved
	}
	return r.answer, err
}

// unavailable returns the error of Do for a Store that failed with err before the work.
func unavailable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", ErrStore, err)
}

// run is one call of Do.
type run struct {
	Keeper
	Request
	work        func(ctx context.Context) Outcome
	fingerprint [sha256.Size]byte

	seen    Record // the Record of an earlier run
	own     Record // the Record of this run while it is in progress
	answer  Answer
	unsaved error // wraps ErrNotStored
}

// judge decides what r.seen means for this request. If an earlier run is still in progress, or
// there was none, the result final is false.
func (r *run) judge() (final bool, err error) {
	fingerprint, _, ok := readName(r.seen.Run)
	switch {
	case r.seen.Run == "":
		return false, nil
	case !ok:
		return true, fmt.Errorf("%w: %w", ErrStore, exclusive.ErrForeign)
	case fingerprint != r.fingerprint:
		return true, ErrReused
	case r.seen.Open:
		return false, nil
	case r.seen.Answer == nil:
		return true, locker.ErrDone
	}
	response, ok := decode(r.seen.Answer)
	if !ok { // another version of this program has done the work
		return true, fmt.Errorf("%w: %w", locker.ErrDone, exclusive.ErrForeign)
	}
	r.answer = Answer{Response: response, Replayed: true}
	return true, nil
}

// underLock does the part of Do that needs the lock. ctx is the context of the lease.
func (r *run) underLock(ctx context.Context) error {
	lease, ok := locker.FromContext(ctx)
	if !ok {
		return locker.ErrLost
	}
	r.own = Record{Run: newName(r.fingerprint, lease.Fence()), Open: true}
	if final, err := r.begin(ctx, lease.Fence()); final || err != nil {
		return err
	}
	attempt := &Attempt{lease: lease, wasInterrupted: r.seen.Run != ""}
	_, attempt.interruptedFence, _ = readName(r.seen.Run)
	return r.attempt(ctx, attempt)
}

// begin writes the Record of this run. It replaces an earlier Record in progress, unless that
// Record has a larger fence. The result final is true if an earlier run has ended in the meantime.
func (r *run) begin(ctx context.Context, fence uint64) (final bool, err error) {
	for {
		if final, err := r.judge(); final {
			return true, err
		}
		if _, earlier, _ := readName(r.seen.Run); earlier > fence {
			return false, ErrOvertaken
		}
		now, err := r.Store.Swap(ctx, r.Rule.Key, r.seen, r.own, r.lifetime())
		if err != nil {
			return false, unavailable(ctx, err)
		}
		if now.Run == r.own.Run {
			return false, nil
		}
		r.seen = now
	}
}

// attempt calls the work for the Attempt a, and stores its outcome.
func (r *run) attempt(ctx context.Context, a *Attempt) error {
	working, stop := outlive(ctx, a.lease, cmp.Or(r.FinishWithin, defaultFinishWithin))
	defer stop()
	working = context.WithValue(working, attemptKey{}, a)

	returned := false
	work := func(ctx context.Context) Outcome {
		outcome := r.work(ctx)
		returned = true
		// If the work fails, an ended context may be the reason.
		interrupted := outcome.Failed && ctx.Err() != nil
		outcome.Keep = outcome.Keep && !a.discarded.Load() && !interrupted
		return outcome
	}
	defer func() {
		if !returned { // work was not called, or panicked: the next request runs it
			_ = r.forget(context.WithoutCancel(ctx))
		}
	}()

	outcome, saved, err := r.transact(working, a, work)
	switch {
	case err != nil && !returned: // the transaction could not be begun
		return unavailable(ctx, err)
	case err != nil: // the commit failed or is unclear, or a later holder has stored its outcome
		return err
	case lost(a.lease):
		// The lease has ended, so another holder may run the same request. Run reports the loss.
		return nil
	case !saved:
		if err := r.settle(context.WithoutCancel(ctx), outcome); err != nil {
			return err
		}
	}
	r.answer.Response = outcome.Response
	if outcome.Failed {
		return errFailed
	}
	return nil
}

// transact calls work, inside a transaction if the Store is a Transactor. The result saved reports
// whether the answer was committed together with the work.
func (r *run) transact(ctx context.Context, a *Attempt, work func(context.Context) Outcome) (outcome Outcome, saved bool, err error) {
	t, ok := r.Store.(Transactor)
	if !ok {
		return work(ctx), false, nil
	}
	err = t.Transact(ctx, func(ctx context.Context) error {
		outcome = work(ctx)
		if outcome.Failed {
			return errFailed
		}
		for _, l := range locker.LeasesFromContext(ctx) {
			if cause := context.Cause(l.Context()); cause != nil && !errors.Is(cause, locker.ErrReleased) {
				return cause
			}
		}
		saved = true
		if outcome.Keep {
			return r.save(ctx, outcome)
		}
		return r.forget(ctx)
	})
	if errors.Is(err, errFailed) {
		err = nil
	}
	return outcome, saved, err
}

// lost reports whether the lease has ended. After Close of the Locker, only the context of the
// lease has ended: the lease is held until the work returns, and the work is remembered.
func lost(lease *locker.Lease) bool {
	cause := context.Cause(lease.Context())
	return cause != nil && (!errors.Is(cause, locker.ErrClosed) || !time.Now().Before(lease.Expires()))
}

// settle stores the outcome, or removes the Record in progress. Now the work is done, so the client
// must not send the request again, even if the Store fails. So settle fails only if a later holder
// has begun.
func (r *run) settle(ctx context.Context, outcome Outcome) error {
	var err error
	if outcome.Keep {
		err = r.save(ctx, outcome)
	} else {
		err = r.forget(ctx)
	}
	switch {
	case errors.Is(err, ErrOvertaken):
		return err
	case err != nil:
		r.unsaved = fmt.Errorf("%w: %w", ErrNotStored, err)
	}
	return nil
}

// save replaces the Record in progress by the outcome. If the Record in progress has expired, save
// writes the outcome. It returns ErrOvertaken if the key has the Record of another run.
func (r *run) save(ctx context.Context, outcome Outcome) error {
	rec := Record{Run: r.own.Run}
	if !outcome.DoneOnly {
		rec.Answer = encode(outcome.Response)
	}
	now, err := r.Store.Swap(ctx, r.Rule.Key, r.own, rec, r.lifetime())
	if err == nil && now.Run == "" {
		now, err = r.Store.Swap(ctx, r.Rule.Key, Record{}, rec, r.lifetime())
	}
	if err == nil && now.Run != rec.Run {
		return ErrOvertaken
	}
	return err
}

// forget removes the Record in progress, and leaves every other Record unchanged. It returns
// ErrOvertaken if the key has the Record of another run.
func (r *run) forget(ctx context.Context) error {
	now, err := r.Store.Swap(ctx, r.Rule.Key, r.own, Record{}, 0)
	if err == nil && now.Run != "" {
		return ErrOvertaken
	}
	return err
}

func (k Keeper) lifetime() time.Duration { return cmp.Or(k.Lifetime, defaultLifetime) }

// outlive returns a context with the values of ctx. This context ends when lease ends, or another lease
// of ctx is lost. It also ends when the time limit has passed after the end of ctx.
func outlive(ctx context.Context, lease *locker.Lease, limit time.Duration) (context.Context, context.CancelFunc) {
	working, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stops := []func() bool{context.AfterFunc(ctx, func() {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel(ErrUnfinished)
		case <-working.Done():
		}
	})}
	work := working
	for _, l := range locker.LeasesFromContext(ctx) {
		if l != lease && errors.Is(context.Cause(l.Context()), locker.ErrReleased) {
			continue
		}
		var end context.CancelCauseFunc
		work, end = exclusive.WithCancelCause(work, l.Context())
		stops = append(stops, context.AfterFunc(l.Context(), func() { end(context.Cause(l.Context())) }))
	}
	return work, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(context.Canceled)
	}
}
