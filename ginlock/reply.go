package ginlock

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/locker"
)

// The values of [Problem.Code].
const (
	CodeBusy           = "lock-busy"
	CodeTooManyWaiters = "too-many-waiters"
	CodeDone           = "already-done"
	CodeInvalidKey     = "invalid-key"
	CodeUnavailable    = "lock-unavailable"
	CodeClosed         = "lock-closed"
	CodeLost           = "lock-lost"
	CodeMisconfigured  = "lock-misconfigured"
	CodeClientGone     = "client-gone"
)

// StatusClientGone is the status of a request whose client gave up while it waited. Nobody receives it; access logs
// know it from nginx.
const StatusClientGone = 499

// typePrefix and a code make the type of a Problem: the page that explains it.
const typePrefix = "https://pkg.go.dev/github.com/latchkit/latchkit/ginlock#"

// soon is when to try again where nobody knows better.
const soon = time.Second

// A Problem says why a request did not get its lock, or lost it. Its exported fields are the members of
// application/problem+json (RFC 9457), and hold nothing of the request. As an error its text is fit for logs, without
// the key; errors.Is and errors.As find the Locker's error in it.
type Problem struct {
	Type         string `json:"type"`
	Title        string `json:"title"`
	Status       int    `json:"status"`
	Detail       string `json:"detail,omitempty"`
	Instance     string `json:"instance,omitempty"` // names this one occurrence, for support and logs
	Code         string `json:"code"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`

	err error
}

// Error returns for example "ginlock: lock-unavailable: acquire: the lock server cannot be asked now: EOF".
func (p *Problem) Error() string {
	if e, ok := errors.AsType[*locker.Error](p.err); ok { // whose own text has the key
		return fmt.Sprintf("ginlock: %s: %v: %v", p.Code, e.Op, e.Err)
	}
	return fmt.Sprintf("ginlock: %s: %v", p.Code, p.err)
}

// Unwrap returns the Locker's error.
func (p *Problem) Unwrap() error { return p.err }

// ErrorType is what OpenTelemetry's instrumentation of Gin takes for error.type.
func (p *Problem) ErrorType() string { return p.Code }

type outcomeKey struct{}

// Outcome returns the Problem of a request whose handler was not run or lost its lock, also when no reply could be
// written any more. There is none when all went well. It is for loggers, after c.Next.
func Outcome(c *gin.Context) (*Problem, bool) {
	p, ok := c.Get(outcomeKey{})
	if !ok {
		return nil, false
	}
	return p.(*Problem), true
}

// reply is the answer to one kind of error.
type reply struct {
	is     error
	status int
	code   string
	title  string
	detail string
	retry  bool // say when
	report bool // to c.Error: an operator should know
}

// replies are the answers to requests that were not run, by what the error is; the first that fits.
var replies = []reply{
	{is: locker.ErrDone, status: http.StatusConflict, code: CodeDone,
		title: "The work was done already", detail: "An earlier request has done this, and it is not done again."},
	{is: locker.ErrTooManyWaiters, status: http.StatusTooManyRequests, code: CodeTooManyWaiters, retry: true,
		title: "Too many requests wait for the lock", detail: "Try again later."},
	{is: locker.ErrClosed, status: http.StatusServiceUnavailable, code: CodeClosed, retry: true,
		title: "The service is stopping", detail: "Nothing was done. Try again."},
	{is: locker.ErrInvalidKey, status: http.StatusBadRequest, code: CodeInvalidKey,
		title: "The request cannot be locked", detail: "What it names is not allowed."},
	{is: locker.ErrInvalidRule, status: http.StatusInternalServerError, code: CodeMisconfigured, report: true,
		title: "The lock is set up wrongly", detail: "Nothing was done."},
	{is: locker.ErrUnsupported, status: http.StatusInternalServerError, code: CodeMisconfigured, report: true,
		title: "The lock is set up wrongly", detail: "Nothing was done."},
	{is: locker.ErrLost, status: http.StatusServiceUnavailable, code: CodeLost, retry: true, report: true,
		title: "The lock was lost", detail: "Nothing was done. Try again."},
	unavailable,
	{is: locker.ErrBusy, status: http.StatusConflict, code: CodeBusy, retry: true,
		title: "The lock is held by another request", detail: "Nothing was done. Try again later."},
}

// unavailable is also the answer to an error that is none of the replies: without the lock nothing runs.
var unavailable = reply{is: locker.ErrUnavailable, status: http.StatusServiceUnavailable, code: CodeUnavailable, retry: true, report: true,
	title: "The lock cannot be asked for", detail: "Nothing was done. Try again later."}

// overtaken is the answer to a request whose lock ended before its handler did.
var overtaken = reply{status: http.StatusServiceUnavailable, code: CodeLost, report: true,
	title: "The lock was lost", detail: "The request was being handled; it may or may not have been completed."}

// gone is the outcome of a request whose client gave up.
var gone = reply{status: StatusClientGone, code: CodeClientGone, title: "The client gave up"}

// replyTo finds the reply to an error of a request that was not run.
func (m *middleware) replyTo(err error) reply {
	for _, r := range replies {
		if errors.Is(err, r.is) {
			if r.code == CodeBusy {
				r.status = m.status
			}
			return r
		}
	}
	return unavailable
}

// refuse answers a request that was not run.
func (m *middleware) refuse(c *gin.Context, err error) {
	// A Locker may fail with a context error of its own: only the end of the request's context says that nobody listens.
	if errors.Is(err, context.Canceled) && errors.Is(c.Request.Context().Err(), context.Canceled) {
		c.Set(outcomeKey{}, gone.problem(err))
		c.AbortWithStatus(StatusClientGone)
		return
	}
	m.answer(c, m.replyTo(err), err)
}

// spoiled handles what went wrong with the lock of a request that was run.
func (m *middleware) spoiled(c *gin.Context, err error) {
	if errors.Is(err, locker.ErrLost) || errors.Is(err, locker.ErrExpired) {
		m.answer(c, overtaken, err)
		return
	}
	// The work succeeded, and with Rule.Once nobody knows whether that will be remembered: the reply stands.
	p := unavailable.problem(err)
	c.Set(outcomeKey{}, p)
	report(c, p)
}

// answer tells the client, if nothing was written yet, and whoever else should know.
func (m *middleware) answer(c *gin.Context, r reply, err error) {
	p := r.problem(err)
	c.Set(outcomeKey{}, p)
	if r.report {
		report(c, p)
	}
	c.Abort()
	if c.Writer.Written() {
		return
	}
	h := c.Writer.Header()
	for _, name := range []string{"Content-Length", "Etag", "Last-Modified"} { // of a reply that is not sent
		h.Del(name)
	}
	h.Set("Cache-Control", "no-store")
	if p.RetryAfterMS > 0 {
		h.Set("Retry-After", strconv.FormatInt((p.RetryAfterMS+999)/1000, 10))
	}
	c.Status(p.Status)
	m.render(c, p)
}

// report tells c.Error. A busy lock is not reported: loggers and traces take whatever is there for a failure.
func report(c *gin.Context, p *Problem) { _ = c.Error(p).SetType(gin.ErrorTypePrivate) }

// problem makes the Problem of one occurrence.
func (r reply) problem(err error) *Problem {
	p := &Problem{
		Type: typePrefix + r.code, Title: r.title, Status: r.status, Detail: r.detail,
		Instance: occurrence(), Code: r.code, err: err,
	}
	if lacks, ok := errors.AsType[*missing](err); ok {
		p.Detail = lacks.Error()
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

// occurrence is a random UUID as a URN.
func occurrence() string {
	var u [16]byte
	_, _ = rand.Read(u[:]) // never fails
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// writeProblem is the default of WithErrorHandler.
func writeProblem(c *gin.Context, p *Problem) {
	body, err := json.Marshal(p)
	if err != nil { // strings and numbers always marshal
		return
	}
	c.Data(p.Status, "application/problem+json", body)
}
