package httplock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/breaker"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/internal/template"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// NewIdempotency returns a middleware that runs a request with an Idempotency-Key once. A repeated
// request, in any process, gets the response of the first run. While the first run is under way,
// the second request waits for it, at most for the time of [WithWait]. Requests with safe methods
// run without a lock. The error is as with [New].
//
// scope identifies the owner of the keys by a template such as "{claim.sub}". Use a part that the
// client cannot choose, set by authentication that runs before this middleware. With a header such
// as X-Tenant, a client could name another tenant and get the response to that tenant's request.
// For a service with a single client, the scope may be a constant text.
//
// The handler does not run for these requests:
//
//	without an Idempotency-Key          400  invalid-key; WithFilter can let these requests run
//	that was answered before            the same response, with Idempotency-Replayed: true
//	with the key of another request     422  idempotency-key-reused
//	whose response was too large        409  already-done
//	while the Store is unavailable      503  answers-unavailable: nothing was done
//
// If the client leaves, the handler continues. Its context ends with the lock, and at the latest 1 min
// after the client has left. So a retry gets the answer of the finished work.
//
// A response is stored for 24 h ([WithLifetime]). A response with the status 5xx, 408, 425 or 429,
// or with Retry-After, is not stored, so a repeated request runs again. Also not stored are
// responses with a status of 400 or more after the client has left, and refusals by another lock
// inside. If a handler has written nothing, nothing is stored, and the handler has not succeeded:
// write a status, such as 204. The handler does not see the header Accept-Encoding, so that a
// middleware inside does not compress a response that other clients get. Set-Cookie, the headers
// of a connection and trailers are not stored. A response of more than 64 KiB is sent as it is
// written (with an idempotency.Transactor, after the COMMIT), and only the mark "done" is stored.
//
// A record "in progress" is written before the handler runs. If the process dies, the record
// stays, and the next request runs the handler again. In that run, idempotency.FromContext reports
// the interrupted run.
//
// If a lock inside is lost, the reply is lock-lost, and the handler's response is not sent, except
// for a response of more than 64 KiB that has begun, and for one that was not held back. If the
// handler has succeeded all the same, the work is done, and a repeated request gets the handler's
// response, or 409 already-done if the handler has written nothing. If the handler has succeeded,
// and its response did not reach the client, the work is done, too.
//
// Put this middleware outside of other locks, so that a replay needs no other lock, unless its Store is
// an idempotency.Transactor: then put it inside. A lock inside of the transaction would end before the
// COMMIT, so its requests are refused with lock-misconfigured. [FromRules] puts the middleware of
// [Rule].Idempotency where it belongs.
func NewIdempotency(l locker.Locker, store idempotency.Store, scope Key, opts ...Option) (func(http.Handler) http.Handler, error) {
	m, err := makeIdempotency(l, store, scope, opts)
	if err != nil {
		return nil, signed(opts, err)
	}
	return m.wrap, nil
}

// MustIdempotency is [NewIdempotency] for the line of a route: it panics as [MustNew] does.
func MustIdempotency(l locker.Locker, store idempotency.Store, scope Key, opts ...Option) func(http.Handler) http.Handler {
	return framework.Must(NewIdempotency(l, store, scope, opts...))
}

func makeIdempotency(l locker.Locker, store idempotency.Store, scope Key, opts []Option) (*middleware, error) {
	if store == nil {
		return nil, errors.New("the Store is nil; make one with idempotency.NewRedis or idempotency.NewMemory")
	}
	if scope == "" {
		return nil, errors.New("the scope is empty; name the owner of the keys, such as \"{claim.sub}\"")
	}
	unsafe := WithFilter(func(r *http.Request) bool { return !safe(r.Method) })
	opts = append(slices.Clone(opts), unsafe, WithStore(store))
	return makeMiddleware(l, template.Join("idempotency", scope, template.Part(idempotencySource, "")), opts)
}

// once answers r from the Store, or runs the handler and stores its response.
func (m *middleware) once(out response, r *http.Request, next http.Handler) {
	rule, _, err := m.rules(r.Context(), r)
	if err != nil {
		m.refuse(out, r, err)
		return
	}
	req := idempotency.Request{Rule: rule}
	if req.Content, err = m.content(r); err != nil {
		m.refuse(out, r, err)
		return
	}
	if m.breaker.Open() {
		m.unguarded(out, r, next, breaker.ErrOutage)
		return
	}
	h, before := newHeld(out, m.commits() || m.reader.Whole), describe(out.Header())
	began, ran, aborted, replied, untouched := time.Now(), false, false, false, !begun(out)
	var answer idempotency.Answer
	var lost atomic.Pointer[loss]
	err = m.breaker.Try(r.Context(), rule.Key, func(ctx context.Context, granted func()) (err error) {
		answer, err = m.keeper.Do(ctx, req, func(ctx context.Context) idempotency.Outcome {
			ran = true
			granted()
			waited := time.Since(began)
			m.event(r, eventAcquired, waited)
			showWait(waited, h.header)
			aborted = m.call(context.WithValue(ctx, insideKey{}, &inside{&lost, m.commits()}), h, r, next)
			if replied = untouched && !h.over && begun(out); replied {
				return m.repliedPast(out, r)
			}
			return m.outcome(r, h, lost.Load())
		})
		return err
	})
	switch {
	case ran && err != nil && !errors.Is(err, idempotency.ErrNotStored):
		m.spoiled(out, r, before, err, false)
	case replied:
		if err != nil {
			m.report(r, unsaved.problem(err))
		}
	case ran:
		if err != nil { // the work is done; after a refusal the client would repeat it
			m.report(r, unsaved.problem(err))
		}
		if l := lost.Load(); l != nil { // the lock inside has reported it
			m.send(out, r, l.problem)
		} else {
			h.send()
		}
	case err != nil:
		m.unlocked(out, r, next, err)
	default:
		m.event(r, eventReplayed, 0)
		h.repeat(answer.Response)
		h.send()
	}
	if aborted {
		panic(http.ErrAbortHandler)
	}
}

// repliedPast is the outcome of a handler that has replied by out itself. The response is not
// known, but the work is done: the mark "done" is stored, so that a repeated request does not run
// again.
func (m *middleware) repliedPast(out response, r *http.Request) idempotency.Outcome {
	succeeded := m.escaped(out, r)
	return idempotency.Outcome{Keep: storable(out.Status(), out.Header()), DoneOnly: true, Failed: !succeeded}
}

type insideKey struct{}

// inside is what a lock inside of NewIdempotency finds in its context.
type inside struct {
	lost    *atomic.Pointer[loss] // atomic, because a middleware in between may give up the handler and reply itself
	commits bool                  // the Store is a Transactor
}

var errInsideTransaction = fmt.Errorf("%w: a lock inside of NewIdempotency, whose Store is an idempotency.Transactor, would be "+
	"released before the COMMIT; put the lock outside, before NewIdempotency in the line of the route", locker.ErrInvalidRule)

// loss says that a lock inside of NewIdempotency was lost. The handler's response is not sent.
type loss struct {
	problem   *Problem
	succeeded bool // the handler
}

// outcome converts the handler's response in h for the Store. If a lock inside was lost, work that has
// succeeded is done all the same.
func (m *middleware) outcome(r *http.Request, h *held, lost *loss) idempotency.Outcome {
	succeeded := m.succeeded(r, h)
	// Two failures are not stored. If the handler failed and has written nothing, an outer
	// middleware writes the response later. If the client has left, its leaving may have caused the
	// failure.
	answers := succeeded || h.Written() && r.Context().Err() == nil
	if lost != nil {
		succeeded = lost.succeeded
		answers = succeeded
	}
	out := idempotency.Outcome{
		Keep:     answers && storable(h.Status(), h.header),
		DoneOnly: h.over || h.body.Len() > maxStored || lost != nil && !h.Written(), // only the framework may know the response
		Failed:   !succeeded,
	}
	if out.Keep && !out.DoneOnly {
		out.Response = idempotency.Response{Status: h.Status(), Header: memorable(h.changed()), Body: h.body.Bytes()}
	}
	return out
}

// storable reports whether a response is stored: not one that says that another attempt may succeed.
func storable(status int, h http.Header) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status < http.StatusInternalServerError && h.Get("Retry-After") == ""
}

// replayed is the header of a repeated response.
const replayed = "Idempotency-Replayed"

// content returns what distinguishes requests with the same key: method, path, query, media type and
// body.
func (m *middleware) content(r *http.Request) ([][]byte, error) {
	body, err := contents(r, m.maxBody)
	if err != nil {
		return nil, &template.Error{Part: template.Ref{Source: "body"}, Noun: "body", Err: err}
	}
	media, body := sameBody(r.Header.Get("Content-Type"), body)
	return [][]byte{[]byte(r.Method), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery), []byte(media), body}, nil
}

// sameBody removes the parts that clients change when they send the same request again: the
// parameters of the media type, and the boundary between the parts of a form.
func sameBody(contentType string, body []byte) (media string, same []byte) {
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return contentType, body
	}
	if boundary := params["boundary"]; boundary != "" && strings.HasPrefix(media, "multipart/") {
		body = bytes.ReplaceAll(body, []byte("--"+boundary), []byte("--"))
	}
	return media, body
}

// repeat copies the stored response into h.
func (h *held) repeat(answer idempotency.Response) {
	maps.Copy(h.header, answer.Header)
	h.header.Set(replayed, "true")
	h.WriteHeader(answer.Status)
	h.body.Write(answer.Body)
}

// memorable returns h without headers that belong to one connection, one moment or one browser.
// Such headers must not be repeated.
func memorable(h http.Header) http.Header {
	for _, name := range []string{
		"Set-Cookie", "Date", "Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade", "Trailer", "Proxy-Authenticate", "Server-Timing",
	} {
		h.Del(name)
	}
	return h
}
