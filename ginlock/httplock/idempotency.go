package httplock

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/key"
)

// Idempotency returns a middleware that runs a request with an Idempotency-Key once, and answers it with the same response
// when it comes again, in any process, also while the first one is still under way: that one is waited for, as
// [WithWait] says. Safe methods pass. It panics as [New] does.
//
// scope says whose the keys are: a template such as "{claim.sub}" or "{header.X-Tenant}", so that no client is ever shown
// the response to another one's request. For a service with one kind of client a word will do.
//
// The reply to a request
//
//	without an Idempotency-Key          400  invalid-key
//	that was answered before            the same response, with Idempotency-Replayed: true
//	whose key came with another one     422  idempotency-key-reused: method, URL, Content-Type and body must be the same
//	whose response was too large        409  already-done
//
// A response is remembered for 24 h ([WithLifetime]) unless its status is 5xx, 408, 425 or 429 or it has a Retry-After, which
// all mean that the request shall be tried again. Set-Cookie and the headers of a connection are not remembered. Like with
// [WithBufferedResponse], the response goes out after the lock's end is confirmed; one of more than 1 MiB, or of what
// WithBufferedResponse says, goes out as it is written and is not remembered, only that the work is done.
//
// A handler that panics, and a process that dies, leave no response: the next request runs it again.
func Idempotency(l locker.Locker, store idempotency.Store, scope Key, opts ...Option) func(http.Handler) http.Handler {
	middleware, err := MakeIdempotency(l, store, scope, opts...)
	if err != nil {
		panic("httplock: Idempotency: " + err.Error())
	}
	return middleware
}

// MakeIdempotency is [Idempotency] for what is no part of the program's text: it returns what is wrong.
func MakeIdempotency(l locker.Locker, store idempotency.Store, scope Key, opts ...Option) (func(http.Handler) http.Handler, error) {
	if store == nil {
		return nil, errors.New("the Store is nil; make one with idempotency.NewRedis or idempotency.NewMemory")
	}
	if scope == "" {
		return nil, errors.New("the scope is empty; say whose the keys are, such as \"{header.X-Tenant}\"")
	}
	unsafe := WithFilter(func(r *http.Request) bool { return !safe(r.Method) })
	opts = append(slices.Clone(opts), unsafe, WithStore(store))
	return Make(l, key.Join("idempotency", scope, key.Part(idempotencySource, "")), opts...)
}

// WithStore makes [New] remember responses under its key, as [Idempotency] does: for requests that are told apart by
// something else than the header Idempotency-Key, such as "payment:{body.request_id}". Every method is remembered.
func WithStore(store idempotency.Store) Option {
	return func(c *config) {
		if !c.refuse(store == nil, "WithStore(nil); leave it out to remember nothing") {
			c.store = store
		}
	}
}

// WithLifetime sets for how long a response is remembered. Default: 24 h.
func WithLifetime(d time.Duration) Option { return func(c *config) { c.keep = d } }

// WithStorable says which responses are remembered. Default: all but 5xx, 408, 425 and 429, and those with a Retry-After.
func WithStorable(storable func(status int, h http.Header) bool) Option {
	return func(c *config) {
		if !c.refuse(storable == nil, "WithStorable(nil); leave it out to go by the status") {
			c.storable = storable
		}
	}
}

func storable(status int, h http.Header) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status < http.StatusInternalServerError && h.Get("Retry-After") == ""
}

// replayed marks a response that is a repetition.
const replayed = "Idempotency-Replayed"

// errKeyReused is answered 422.
var errKeyReused = errors.New("the key came with another request before")

// notRun is what kept a request that has its lock from being run.
type notRun struct{ error }

func (e notRun) Unwrap() error { return e.error }

// remember answers from the Store, or runs the handler and saves its response.
func (m *middleware) remember(ctx context.Context, h *held, r *http.Request, next http.Handler) error {
	lease, err := leaseOf(ctx)
	if err != nil {
		return err
	}
	name, err := m.template.Key(ctx, r) // and not the lease's key, which may stand for many: see locker.NewStriped
	if err != nil {
		return notRun{err}
	}
	fingerprint, err := m.fingerprint(r)
	if err != nil {
		return notRun{err}
	}
	rec, found, err := m.store.Load(ctx, name)
	switch {
	case err != nil && m.failOpen && ctx.Err() == nil:
		m.tell(r, unavailable.problem(err))
		m.call(ctx, h, r, next)
		return nil
	case err != nil && ctx.Err() != nil:
		return notRun{context.Cause(ctx)}
	case err != nil:
		return notRun{fmt.Errorf("%w: %w", locker.ErrUnavailable, err)}
	case found && rec.Fingerprint != fingerprint:
		return notRun{errKeyReused}
	case found && rec.Partial:
		return notRun{locker.ErrDone}
	case found:
		h.repeat(rec)
		return nil
	}
	m.call(ctx, h, r, next)
	if !m.keeps(lease, r, h) {
		return nil
	}
	rec = idempotency.Record{Fingerprint: fingerprint, Status: h.Status(), Partial: h.over}
	if !h.over {
		rec.Header, rec.Body = memorable(h.changed()), h.body.Bytes()
	}
	if err := m.store.Save(context.WithoutCancel(ctx), name, rec, m.keep); err != nil {
		m.tell(r, unavailable.problem(err)) // the work is done: to say anything else would have it done again
	}
	return nil
}

// keeps says whether a response is to be remembered. One that was not begun, of a handler that failed, is not there yet: a
// middleware outside will write it. After a loss, which the release reports, somebody else may be at it, and saves what is to be
// repeated.
func (m *middleware) keeps(lease *locker.Lease, r *http.Request, h *held) bool {
	return m.storable(h.Status(), h.header) && (h.Written() || m.succeeded(r, h.Status())) && lease.Context().Err() == nil
}

// fingerprint tells requests apart. Each piece comes after its length, so that none can pass for a part of another.
func (m *middleware) fingerprint(r *http.Request) (sum [sha256.Size]byte, err error) {
	data, err := m.whole(r)
	if err != nil {
		return sum, err
	}
	hash := sha256.New()
	for _, piece := range [][]byte{[]byte(r.Method), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery), []byte(r.Header.Get("Content-Type")), data} {
		_, _ = hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(piece)))) // never fails
		_, _ = hash.Write(piece)
	}
	return [sha256.Size]byte(hash.Sum(nil)), nil
}

// whole returns the body that a fingerprint is made of.
func (m *middleware) whole(r *http.Request) ([]byte, error) {
	data, err := contents(r, m.maxBody)
	if err != nil {
		return nil, &key.Error{Part: key.Ref{Source: "body"}, Noun: "body", Err: err}
	}
	return data, nil
}

// repeat makes h the response that was remembered.
func (h *held) repeat(rec idempotency.Record) {
	maps.Copy(h.header, rec.Header)
	h.header.Set(replayed, "true")
	h.status = rec.Status
	h.body.Write(rec.Body)
}

// memorable drops what belongs to one connection, one moment or one browser.
func memorable(h http.Header) http.Header {
	for _, name := range []string{"Set-Cookie", "Date", "Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade", "Trailer", "Proxy-Authenticate"} {
		h.Del(name)
	}
	return h
}
