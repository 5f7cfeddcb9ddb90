package httplock

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/latchkit/latchkit/internal/fenced"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// Reply answers a request whose handler got err from a lock or from a transaction under a lock, as
// the middleware answers: with the same statuses, codes and times for a retry. It returns false,
// and writes nothing, if err is nil or is no error of a lock; then the reply is the handler's.
//
//	order, err := pay(r.Context(), id)
//	switch {
//	case httplock.Reply(w, r, err):
//	case err != nil:
//		http.Error(w, "the payment failed", http.StatusInternalServerError)
//	…
//
// These are the replies, beside those of a lock that the handler wanted and did not get:
//
//	sqllock.ErrStaleFence               503 lock-lost, Retry-After: nothing was changed
//	sqllock.ErrTooLate, ErrIdle         503 lock-lost, Retry-After: nothing was changed
//	locker.ErrLost, ErrExpired          503 lock-lost: it may or may not be completed
//	locker.ErrClosed                    503 lock-closed: it may or may not be completed
//	locker.ErrUnavailable of a release  503 lock-unavailable: it is handled, perhaps not recorded
//	locker.ErrDone                      409 already-done
//
// If err is context.Canceled because the lock was lost, the loss counts. r is the handler's own
// request. Reply is also for handlers without a middleware that call locker.Run themselves, and for
// Gin: httplock.Reply(c.Writer, c.Request, err). Of opts, those for replies count:
// WithErrorHandler and WithObserve; if New would refuse one of them, none counts. Reply returns false,
// and has written nothing, for every other error and for nil.
func Reply(w http.ResponseWriter, r *http.Request, err error, opts ...Option) bool {
	if errors.Is(err, context.Canceled) {
		err = errors.Join(err, context.Cause(r.Context()))
	}
	cfg, wrong := newConfig(opts)
	if wrong != nil { // New refuses such options
		cfg, _ = newConfig(nil)
	}
	m := &middleware{config: cfg}
	if with, ok := fromHandler(err); ok {
		m.answer(watch(w), r, with, err)
		return true
	}
	if !ofLocker(err) && !slices.ContainsFunc(replies, func(with reply) bool { return errors.Is(err, with.is) }) {
		return false
	}
	m.refuse(watch(w), r, err)
	return true
}

// fromHandler returns the reply to an error that a handler got after its work had begun. It returns
// false if a lock was refused.
func fromHandler(err error) (with reply, ok bool) {
	e, _ := errors.AsType[*locker.Error](err)
	refused := e != nil && e.Op == locker.OpAcquire
	if with, ok := rolledBack(err); ok {
		return with, true
	}
	switch {
	case errors.Is(err, locker.ErrLost) && (!refused || !errors.Is(e, locker.ErrLost)), errors.Is(err, locker.ErrExpired):
		return overtaken, true
	case !refused && errors.Is(err, locker.ErrClosed):
		return interrupted, true
	case !refused && errors.Is(err, locker.ErrUnavailable) && !errors.Is(err, idempotency.ErrStore):
		return unrecorded, true
	}
	return reply{}, false
}

// rolledBack returns the reply to an error that says that nothing was changed.
func rolledBack(err error) (with reply, ok bool) {
	switch {
	case errors.Is(err, fenced.ErrStale):
		return overruled, true
	case errors.Is(err, fenced.ErrTooLate), errors.Is(err, fenced.ErrIdle):
		return late, true
	}
	return reply{}, false
}

// overruled and late are the replies to a request whose transaction was rolled back.
var (
	overruled = reply{status: http.StatusServiceUnavailable, code: CodeLost, retry: true, failure: true,
		title: "The lock was lost", detail: "Another request has taken over, and nothing was changed. Try again."}
	late = reply{status: http.StatusServiceUnavailable, code: CodeLost, retry: true, failure: true,
		title: "The lock was lost", detail: "The work took too long, and nothing was changed. Try again."}
)

// interrupted is the reply to a request whose Locker was closed while it was handled.
var interrupted = reply{status: http.StatusServiceUnavailable, code: CodeClosed,
	title: "The service is stopping", detail: "The request was being handled, and may or may not have been completed."}
