package httplock

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/breaker"
	"github.com/latchkit/latchkit/internal/framework"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/key"
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
//	with the key of another request     422  idempotency-key-reused; see WithFingerprint
//	whose response was too large        409  already-done
//	while the Store is unavailable      503  lock-unavailable: nothing was done
//
// If the client leaves, the handler continues. Its context ends with the lock, and at the latest 1
// min after the client has left ([WithFinishWithin]). So a retry gets the answer of the finished
// work.
//
// A response is stored for 24 h ([WithLifetime]). A response with the status 5xx, 408, 425 or 429,
// or with Retry-After, is not stored, so a repeated request runs again. Also not stored are
// responses with a status of 400 or more after the client has left, and refusals by another lock
// inside. If a handler has written nothing, nothing is stored, and the handler has not succeeded:
// write a status, such as 204. The handler does not see the header Accept-Encoding, so that a
// middleware inside does not compress a response that other clients get. Set-Cookie and the headers
// of a connection are not stored. A response may be larger than 64 KiB, or than the size of
// [WithBufferedResponse]. Such a response is sent as it is written, and only the mark "done" is
// stored.
//
// A record "in progress" is written before the handler runs. If the process dies, the record
// stays, and the next request runs the handler again. In that run, idempotency.FromContext reports
// the interrupted run.
//
// If a lock inside is lost before a reply has begun, its reply is lock-lost. With the FromRules of
// each adapter, and under net/http if no middleware in between replaces the ResponseWriter, this
// reply also takes the place of one that the handler has written. If the handler has succeeded all
// the same, the work is done, and a repeated request gets the handler's response, or 409
// already-done where only the framework knows that response. An idempotency.Transactor rolls the
// work back instead, and a repeated request runs again. If the handler has succeeded, and its
// response did not reach the client, the work is done, too.
//
// Put this middleware outside of other locks, so that a replay needs no other lock. With
// [FromRules], the middleware of [Rule].Idempotency is outside of the other locks.
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
	return makeMiddleware(l, key.Join("idempotency", scope, key.Part(idempotencySource, "")), opts)
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
	h, before := m.hold(out), describe(out.Header())
	began, ran, stalled, aborted, replied, untouched := time.Now(), false, false, false, false, !begun(out)
	var answer idempotency.Answer
	var inside atomic.Pointer[held]
	err = m.breaker.Try(r.Context(), rule.Key, func(ctx context.Context, granted func()) (err error) {
		answer, err = m.keeper.Do(ctx, req, func(ctx context.Context) idempotency.Outcome {
			ran = true
			granted()
			waited := time.Since(began)
			m.event(r, eventAcquired, waited)
			showWait(waited, h.header)
			ctx = context.WithValue(ctx, insideKey{}, &inside)
			stalled, aborted = m.call(ctx, waited, out, h, r, next)
			if replied = untouched && !h.over && begun(out); replied {
				return m.repliedPast(out, r)
			}
			return m.outcome(r, h, inside.Load())
		})
		return err
	})
	switch {
	case replied:
		if err != nil {
			m.spoiled(out, r, before, err)
		}
	case ran && errors.Is(err, idempotency.ErrNotStored):
		m.report(r, unrecorded.problem(err)) // the handler's reply is sent all the same: the work is done, and after another reply the client would repeat it
		h.send()
	case ran && err != nil:
		m.spoiled(out, r, before, err)
	case ran && stalled && !h.Written():
		m.spoiled(out, r, before, ErrStalled)
	case ran:
		h.send()
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
	return idempotency.Outcome{Keep: m.storable(out.Status(), out.Header()), DoneOnly: true, Failed: !succeeded}
}

// insideKey finds where a middleware inside of NewIdempotency tells what its handler has done. The
// pointer is atomic, because a middleware in between may give up the handler and reply itself.
type insideKey struct{}

// done is what the handler under a lock has done.
type done struct {
	before    http.Header // of a response that is held back outside, before the handler ran
	succeeded bool
	aborted   bool
	response  *held // nil: the response was not held back
}

// takeBack takes the response of a handler whose lock was lost out of out, if a middleware outside
// holds it back there: nothing of it was sent, so the reply to the lost lock can replace it.
func (d *done) takeBack(out response, err error) {
	h, ok := out.(*held)
	if !ok || h.over || h.sent || !errors.Is(err, locker.ErrLost) && !errors.Is(err, locker.ErrExpired) {
		return
	}
	taken := *h
	h.status, h.sealed, h.header, h.body = 0, nil, d.before, bytes.Buffer{}
	if d.response == nil && taken.Written() {
		d.response = &taken
	}
}

// tell tells the middleware of NewIdempotency outside of this one that the handler has succeeded,
// although the reply to a lost lock will replace its response in out. If the response was not held
// back and has not begun, at most the framework knows it, and only the mark "done" is stored.
func (d *done) tell(r *http.Request, out response) {
	inside, ok := r.Context().Value(insideKey{}).(*atomic.Pointer[held])
	if !ok || !d.succeeded || begun(out) {
		return
	}
	if d.response == nil {
		d.response = &held{header: out.Header().Clone(), status: out.Status(), over: true}
	}
	inside.Store(d.response)
}

// outcome converts the handler's response in h for the Store. finished is the response of a
// handler that has succeeded, although h has the reply to a lost lock.
func (m *middleware) outcome(r *http.Request, h, finished *held) idempotency.Outcome {
	// With FromRules, a framework knows the handler's status, and not that of the reply in h.
	succeeded := m.succeeded(r, h) && (finished == nil || h.Status() < http.StatusBadRequest)
	if _, undoes := m.store.(idempotency.Transactor); finished != nil && !succeeded && !undoes {
		// The work is done, and a repeated request must not do it again.
		finished.to, finished.over = h.to, finished.over || finished.body.Len() > h.most
		h, succeeded = finished, true
	}
	// Two failures are not stored. If the handler failed and has written nothing, an outer
	// middleware writes the response later. If the client has left, its leaving may have caused the
	// failure.
	out := idempotency.Outcome{
		Keep:     m.storable(h.Status(), h.header) && (succeeded || h.Written() && r.Context().Err() == nil),
		DoneOnly: h.over,
		Failed:   !succeeded,
	}
	if out.Keep && !h.over {
		out.Response = idempotency.Response{Status: h.Status(), Header: memorable(h.changed()), Trailer: h.trailers(), Body: h.body.Bytes()}
	}
	return out
}

// storable is the default of WithStorable.
func storable(status int, h http.Header) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status < http.StatusInternalServerError && h.Get("Retry-After") == ""
}

// replayed is the header of a repeated response.
const replayed = "Idempotency-Replayed"

// content returns what distinguishes requests with the same key.
func (m *middleware) content(r *http.Request) ([][]byte, error) {
	body, err := contents(r, m.maxBody)
	if err != nil {
		return nil, &key.Error{Part: key.Ref{Source: "body"}, Noun: "body", Err: err}
	}
	if m.distinct != nil {
		text, err := m.distinct(r, body)
		if err != nil {
			return nil, &partError{err}
		}
		return [][]byte{text}, nil
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
	for name, values := range answer.Trailer {
		h.header[http.TrailerPrefix+name] = values
	}
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
