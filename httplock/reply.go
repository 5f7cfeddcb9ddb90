package httplock

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/fenced"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/internal/template"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// These are the values of [Problem.Code].
const (
	CodeBusy           = "lock-busy"
	CodeTooManyWaiters = "too-many-waiters"
	CodeDone           = "already-done"
	CodeInvalidKey     = "invalid-key"
	CodeBodyTooLarge   = "body-too-large"
	CodeKeyReused      = "idempotency-key-reused"
	CodeUnavailable    = "lock-unavailable"
	CodeAnswers        = "answers-unavailable"
	CodeClosed         = "lock-closed"
	CodeLost           = "lock-lost"
	CodeMisconfigured  = "lock-misconfigured"
	CodeClientGone     = "client-gone"
	CodeNotJSON        = "unsupported-media-type"
	CodeNoRoute        = "no-route"
)

// statusClientGone is the status of a request whose client gave up while it waited. No client
// receives it. The code is for access logs, and nginx uses it too.
const statusClientGone = 499

// typePrefix and a code make the type of a Problem: the address of the page that explains it.
const typePrefix = "https://pkg.go.dev/github.com/latchkit/latchkit/httplock#"

// soon is the time after which a client should try again if no better time is known.
const soon = time.Second

// A Problem is the reason why a request did not get its lock, or lost it. Its exported fields are
// the members of application/problem+json (RFC 9457), and contain nothing of the request. A Problem
// is also an error. The error's text is for logs, and does not show the key. errors.Is and
// errors.As find the Locker's error in it.
type Problem struct {
	Type         string `json:"type"`
	Title        string `json:"title"`
	Status       int    `json:"status"`
	Detail       string `json:"detail,omitempty"`
	Instance     string `json:"instance,omitempty"` // the name of this one occurrence, for support and logs
	Code         string `json:"code"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`

	err     error
	failure bool
}

// Error returns, for example, "lock-unavailable: acquire: the lock server is unavailable: EOF".
func (p *Problem) Error() string {
	if p.err == nil {
		return p.Code
	}
	if e, ok := errors.AsType[*locker.Error](p.err); ok { // the text of *locker.Error has the key
		return fmt.Sprintf("%s: %v: %v", p.Code, e.Op, e.Err)
	}
	if e, ok := errors.AsType[fenced.Keyed](p.err); ok {
		return fmt.Sprintf("%s: %v", p.Code, e.Unwrap())
	}
	return fmt.Sprintf("%s: %v", p.Code, p.err)
}

// Unwrap returns the Locker's error.
func (p *Problem) Unwrap() error { return p.err }

// ErrorType returns the value that OpenTelemetry's instrumentations use for error.type.
func (p *Problem) ErrorType() string { return p.Code }

// Failure reports whether an operator should know of the Problem: the lock server is unavailable, a
// lock was lost, or something is set up wrongly. A busy lock or a client's mistake is not a
// failure.
func (p *Problem) Failure() bool { return p.failure }

// reply is the reply to one kind of error.
type reply struct {
	is      error
	status  int
	code    string
	title   string
	detail  string
	retry   bool // the reply has a time for the retry
	failure bool
}

// replies has the reply for each error of a request whose handler did not run. The first entry that
// matches the error counts.
var replies = []reply{
	{is: locker.ErrDone, status: http.StatusConflict, code: CodeDone,
		title: "The work was done already", detail: "An earlier request has done the work, so it was not done again."},
	{is: locker.ErrTooManyWaiters, status: http.StatusTooManyRequests, code: CodeTooManyWaiters, retry: true,
		title: "Too many requests wait for the lock", detail: "Try again later."},
	{is: locker.ErrClosed, status: http.StatusServiceUnavailable, code: CodeClosed, retry: true,
		title: "The service is stopping", detail: "Nothing was done. Try again."},
	{is: errBodyTooLarge, status: http.StatusRequestEntityTooLarge, code: CodeBodyTooLarge,
		title: "The body is too large", detail: "Nothing was done."},
	{is: errBodyCut, status: http.StatusBadRequest, code: CodeInvalidKey,
		title: "The body cannot be read", detail: "Nothing was done."},
	{is: errNotJSONType, status: http.StatusUnsupportedMediaType, code: CodeNotJSON,
		title: "The body is not JSON", detail: "Nothing was done. Send JSON, with a Content-Type of application/json."},
	{is: framework.ErrEncoding, status: http.StatusUnsupportedMediaType, code: CodeNotJSON,
		title: "The body is encoded", detail: "Nothing was done. Send JSON without a Content-Encoding."},
	{is: idempotency.ErrReused, status: http.StatusUnprocessableEntity, code: CodeKeyReused,
		title: "The idempotency key belongs to another request", detail: "Nothing was done. Use a new key for a new request."},
	{is: locker.ErrInvalidKey, status: http.StatusBadRequest, code: CodeInvalidKey,
		title: "The request cannot be locked", detail: "The request makes a key that is not allowed."},
	misconfigured(locker.ErrInvalidRule),
	misconfigured(locker.ErrUnsupported),
	{is: locker.ErrLost, status: http.StatusServiceUnavailable, code: CodeLost, retry: true, failure: true,
		title: "The lock was lost", detail: "Nothing was done. Try again."},
	answersUnavailable,
	unavailable,
	{is: locker.ErrBusy, status: http.StatusConflict, code: CodeBusy, retry: true,
		title: "The lock is held by another request", detail: "Nothing was done. Try again later."},
}

func misconfigured(is error) reply {
	return reply{is: is, status: http.StatusInternalServerError, code: CodeMisconfigured, failure: true,
		title: "The lock is set up wrongly", detail: "Nothing was done."}
}

// unavailable is also the reply to every error that is not in replies, because no handler may run
// without the lock.
var unavailable = reply{is: locker.ErrUnavailable, status: http.StatusServiceUnavailable, code: CodeUnavailable, retry: true, failure: true,
	title: "The lock server is unavailable", detail: "Nothing was done. Try again later."}

// answersUnavailable is the reply if the store of an idempotent route has failed. It stands before
// unavailable, because idempotency.ErrStore is also an ErrUnavailable.
var answersUnavailable = reply{is: idempotency.ErrStore, status: http.StatusServiceUnavailable, code: CodeAnswers, retry: true, failure: true,
	title: "The store of answers is unavailable", detail: "Nothing was done. Try again later."}

// uncommitted is the reply to a request whose work and answer are stored in one transaction, when
// the transaction has failed or its outcome is unknown. The client may repeat the request, because
// it is idempotent.
var uncommitted = reply{status: http.StatusServiceUnavailable, code: CodeAnswers, retry: true, failure: true,
	title: "The store of answers is unavailable", detail: "It is unknown whether the request was completed. Repeat it with the same Idempotency-Key."}

// unrecorded, unsaved and unguarded are no replies: observers get them beside the reply of the
// handler. With unrecorded, the handler has run, and it is unknown whether the lock server knows
// it; with unsaved, the store does not know it.
var (
	unrecorded = reply{is: locker.ErrUnavailable, status: http.StatusServiceUnavailable, code: CodeUnavailable, failure: true,
		title: "The lock server is unavailable", detail: "The request was handled. It is unknown whether this was recorded."}
	unsaved = reply{status: http.StatusServiceUnavailable, code: CodeAnswers, failure: true,
		title: "The store of answers is unavailable", detail: "The request was handled. Its response was not stored."}
	unguarded = reply{is: locker.ErrUnavailable, status: http.StatusServiceUnavailable, code: CodeUnavailable, failure: true,
		title: "The lock server is unavailable", detail: "The request is handled without a lock."}
	unguardedByStore = reply{status: http.StatusServiceUnavailable, code: CodeAnswers, failure: true,
		title: "The store of answers is unavailable", detail: "The request is handled without a lock."}
)

// escaped is not a reply either: the handler has replied past its own response.
var escaped = reply{status: http.StatusInternalServerError, code: CodeMisconfigured, failure: true,
	title: "The response was not held back", detail: "The request was handled, and its response was sent at once."}

// overtaken is the reply to a request whose lock ended before its handler did.
var overtaken = reply{status: http.StatusServiceUnavailable, code: CodeLost, failure: true,
	title: "The lock was lost", detail: "The request was being handled, and may or may not have been completed."}

// unconfirmed is the reply to an idempotent request when it is unknown whether its work counts.
var unconfirmed = reply{status: http.StatusServiceUnavailable, code: CodeUnavailable, failure: true,
	title: "The lock cannot be confirmed", detail: "The request was handled, and it is unknown whether another request was handled at the same time."}

// gone is the reply to a request whose client gave up.
var gone = reply{status: statusClientGone, code: CodeClientGone, title: "The client gave up"}

// canceled is the reply to a request that the server itself has ended while it waited.
var canceled = reply{status: http.StatusServiceUnavailable, code: CodeClosed, retry: true,
	title: "The server has ended the request", detail: "Nothing was done. Try again."}

// replyTo finds the reply to an error of a request whose handler did not run.
func (m *middleware) replyTo(err error) reply {
	if _, ok := errors.AsType[*partError](err); ok {
		return misconfigured(nil)
	}
	for _, r := range replies {
		if errors.Is(err, r.is) {
			return r
		}
	}
	if e, ok := errors.AsType[*template.Error](err); ok { // the client may see the text of a *template.Error
		return reply{status: http.StatusBadRequest, code: CodeInvalidKey, title: "The request cannot be locked", detail: e.Error()}
	}
	return unavailable
}

// refuse replies to a request whose handler did not run.
func (m *middleware) refuse(out response, r *http.Request, err error) {
	if attempt, ok := idempotency.FromContext(r.Context()); ok {
		attempt.Discard() // nothing was done, so the refusal is not stored
	}
	// A Locker may fail with a context error of its own. Only the end of the request's context
	// means that the client has left. net/http gives no cause then, so a cause is from the server.
	ended := errors.Is(err, context.Canceled) && errors.Is(r.Context().Err(), context.Canceled)
	cause := context.Cause(r.Context()) // compared by ==, because a signal is Canceled, too
	switch {
	case errors.Is(err, errLeft) || ended && (cause == context.Canceled || errors.Is(cause, idempotency.ErrUnfinished)):
		m.report(r, gone.problem(err))
		if !begun(out) {
			out.WriteHeader(statusClientGone)
		}
	case ended:
		m.answer(out, r, canceled, err)
	default:
		m.answer(out, r, m.replyTo(err), err)
	}
}

// spoiled handles an error of the lock after the handler has run. before describes the reply as it
// was before the handler ran.
func (m *middleware) spoiled(out response, r *http.Request, before description, err error, succeeded bool) {
	with := unconfirmed
	outside, idempotent := r.Context().Value(insideKey{}).(*inside)
	idempotent = idempotent || m.store != nil
	undone, ok := rolledBack(err)
	switch {
	case ok && m.commits():
		with = undone
	case errors.Is(err, locker.ErrLost) || errors.Is(err, locker.ErrExpired):
		if with = overtaken; idempotent {
			with.retry, with.detail = true, uncommitted.detail
		}
	case m.commits() && !ofLocker(err):
		with = uncommitted
	case m.store == nil:
		// The work succeeded, but with Rule.OnceFor it is unknown whether the mark "done" was
		// written. The handler's reply is sent.
		m.report(r, unrecorded.problem(err))
		return
	}
	p := with.problem(err)
	m.report(r, p)
	if outside != nil && m.store == nil {
		outside.lost.Store(&loss{p, succeeded}) // NewIdempotency holds the response back, and replies
		return
	}
	if !begun(out) {
		before.restore(out.Header())
	}
	m.send(out, r, p)
}

// commits reports whether the store commits a response together with the work.
func (m *middleware) commits() bool {
	_, ok := m.store.(idempotency.Transactor)
	return ok
}

// ofLocker reports whether err is an error of the Locker.
func ofLocker(err error) bool {
	_, ok := errors.AsType[*locker.Error](err)
	return ok
}

// describing lists the headers that describe a body. If the handler has set them, they do not fit
// the body of a Problem. If an outer middleware has set them, they fit, because that middleware may
// compress all bodies that pass through it.
var describing = [...]string{"Content-Length", "Content-Encoding", "Etag", "Last-Modified"}

// description has the values of the headers in describing.
type description [len(describing)][]string

func describe(h http.Header) (d description) {
	for i, name := range describing {
		d[i] = h[name]
	}
	return d
}

func (d description) restore(h http.Header) {
	for i, name := range describing {
		if h.Del(name); d[i] != nil {
			h[name] = d[i]
		}
	}
}

// answer reports a Problem, and sends it.
func (m *middleware) answer(out response, r *http.Request, with reply, err error) {
	p := with.problem(err)
	m.report(r, p)
	m.send(out, r, p)
}

// send sends p to the client if no reply has begun.
func (m *middleware) send(out response, r *http.Request, p *Problem) {
	if begun(out) {
		return
	}
	h := out.Header()
	h.Set("Cache-Control", "no-store")
	if p.RetryAfterMS > 0 {
		h.Set("Retry-After", strconv.FormatInt((p.RetryAfterMS+999)/1000, 10))
	}
	if p.Code == CodeClosed {
		// Over this connection, the client's next attempt would meet this process again. With
		// HTTP/2, net/http sends a GOAWAY instead of the header.
		h.Set("Connection", "close")
	}
	m.render(out, r, p)
	if !begun(out) {
		out.WriteHeader(p.Status)
	}
}

// report counts the request by the code of p, and calls the functions of WithObserve with p.
func (m *middleware) report(r *http.Request, p *Problem) {
	if m.events != nil {
		m.event(r, strings.ReplaceAll(p.Code, "-", "_"), 0)
	}
	m.show(r, p)
}

// show gives p to the functions of WithObserve.
func (m *middleware) show(r *http.Request, p *Problem) {
	for _, see := range m.observe {
		see(r, p)
	}
}

// problem makes a Problem from r for one request, with the cause err.
func (r reply) problem(err error) *Problem {
	p := &Problem{
		Type: typePrefix + r.code, Title: r.title, Status: r.status, Detail: r.detail,
		Instance: occurrence(), Code: r.code, err: err, failure: r.failure,
	}
	if r.retry {
		after := soon
		if e, ok := errors.AsType[*locker.Error](err); ok && e.RetryAfter > 0 {
			after = e.RetryAfter
		}
		p.RetryAfterMS = int64((after + time.Millisecond - 1) / time.Millisecond)
	}
	return p
}

// occurrence returns a random UUID as a URN.
func occurrence() string {
	var u [16]byte
	_, _ = rand.Read(u[:]) // never fails
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// writeProblem is the default of WithErrorHandler.
func writeProblem(w http.ResponseWriter, _ *http.Request, p *Problem) {
	body, err := json.Marshal(p)
	if err != nil { // cannot fail for strings and numbers
		return
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body) // a client that has left gets no reply
}
