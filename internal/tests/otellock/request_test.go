package otellock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
)

// root is the name of the span of each request.
const root = "POST /orders/{id}"

// exchange is one request: its setup, its handler, its reply, and the result that its lock must
// leave.
type exchange struct {
	key    httplock.Key // the default is "customer:{header.X-Customer}"
	opts   []httplock.Option
	remote idempotency.Store // if remote is set, the request runs under Idempotency, which uses this Store

	before func(t *testing.T, w *stage)
	handle func(ctx context.Context, w *stage)
	header []string

	status int
	code   string // the code of the Problem
	result string // the lock's result on the span; default: code with _ for -, or "acquired"
}

// stage is what a request meets: the Store, the Locker, and a way to disconnect the client.
type stage struct {
	store  *lockertest.Memory
	locker *locker.Engine
	cancel context.CancelFunc // disconnects the client
}

func unavailable(_ *testing.T, w *stage) {
	w.store.Fail(locker.OpAcquire, &store.Refusal{Err: errors.New("out of memory")})
}

// exchanges has a request for each result, by the name of the case.
var exchanges = map[string]exchange{
	"acquired": {status: 200},
	"busy": {
		opts:   []httplock.Option{httplock.WithWait(locker.NoWait)},
		before: func(_ *testing.T, w *stage) { w.store.Occupy("customer:canary", 1500*time.Millisecond) },
		status: 409, code: "lock-busy",
	},
	"a key without its part": {key: "customer:{header.X-Nobody}", status: 400, code: "invalid-key"},
	"unavailable, fail open": {opts: []httplock.Option{httplock.WithFailOpen()}, before: unavailable, status: 200, code: "lock-unavailable", result: "unguarded"},
	"lost": {
		handle: func(ctx context.Context, w *stage) {
			w.store.Steal("customer:canary")
			<-ctx.Done()
		},
		status: 503, code: "lock-lost",
	},
	"a key that came with another request": {
		remote: reusedKey{}, header: []string{"Idempotency-Key", "k"}, status: 422, code: "idempotency-key-reused",
	},
	"a client that goes away": {
		before: func(_ *testing.T, w *stage) {
			w.store.Occupy("customer:canary", 0)
			time.AfterFunc(time.Second, w.cancel)
		},
		status: 499, code: "client-gone",
	},
}

// reusedKey is a Store that reports, for every key, that another request has used the same key.
type reusedKey struct{ idempotency.Store }

func (reusedKey) Load(context.Context, string) (idempotency.Record, error) {
	return idempotency.Record{Run: strings.Repeat("x", 48), Open: true}, nil
}

// The span around a request shows the result of the request's lock. The spans of the lock are
// children of this span.
func TestTheSpanAroundARequestShowsTheResultOfItsLock(t *testing.T) {
	for name, x := range exchanges {
		t.Run(name, func(t *testing.T) { synctest.Test(t, x.check) })
	}
}

func (x exchange) check(t *testing.T) {
	tel := newTelemetry(t, sdktrace.AlwaysSample(), otellock.WithHoldSpans())
	backend := lockertest.NewMemory()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &stage{store: backend, locker: lockertest.NewLocker(t, backend, locker.WithObserver(tel.observer)), cancel: cancel}
	code := ""
	opts := append(x.opts, httplock.WithObserve(func(_ *http.Request, p *httplock.Problem) { code = p.Code }))
	guard := httplock.MustNew(w.locker, cmp.Or(x.key, "customer:{header.X-Customer}"), opts...)
	if x.remote != nil {
		guard = httplock.MustIdempotency(w.locker, x.remote, "shop", opts...)
	}
	mux := http.NewServeMux()
	mux.Handle(root, guard(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if x.handle != nil {
			x.handle(r.Context(), w)
		}
	})))
	if x.before != nil {
		x.before(t, w)
	}
	ctx, span := tel.tracer.Start(ctx, root)
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders/42", http.NoBody)
	r.Header.Set("X-Customer", "canary")
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(x.header); i += 2 {
		r.Header.Set(x.header[i], x.header[i+1])
	}
	rec := httptest.NewRecorder()
	mux.ServeHTTP(rec, r)
	span.End()

	if rec.Code != x.status || code != x.code {
		t.Errorf("%d %s, code %q; want %d, %q", rec.Code, rec.Body, code, x.status, x.code)
	}
	request := tel.span(t, root)
	for _, s := range tel.spans.Ended() {
		if s != request && s.Parent().SpanID() != request.SpanContext().SpanID() && !strings.HasSuffix(s.Name(), " other") {
			t.Errorf("%q is no child of the request", s.Name())
		}
	}
	tel.surrounded(t, request, cmp.Or(x.result, strings.ReplaceAll(x.code, "-", "_"), "acquired"))
	spans, points := tel.everything(t)
	if all := spans + points + fmt.Sprint(rec.Body, rec.Header()); strings.Contains(all, "canary") {
		t.Errorf("the key was shown: %s", all)
	}
}

// The span around a request shows how the request waited for the inner lock, even if the request
// already holds an outer lock. The span also shows whether the reply was stored by an earlier
// request.
func TestTheSpanAroundARequestShowsWaitsAndReplays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel := newTelemetry(t, sdktrace.AlwaysSample(), otellock.WithHoldSpans())
		store := lockertest.NewMemory()
		l := lockertest.NewLocker(t, store, locker.WithObserver(tel.observer))
		h := httplock.MustIdempotency(l, idempotency.NewMemory(), "shop")(httplock.MustNew(l, "order:42")(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })))
		store.Occupy("order:42", 2*time.Second)
		for i, want := range []string{"name=order result=acquired wait.duration=2", "name=idempotency result=replayed"} {
			ctx, span := tel.tracer.Start(t.Context(), root)
			r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders/42", http.NoBody)
			r.Header.Set("Idempotency-Key", "k")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			span.End()
			ended := tel.spans.Ended()
			if got := text(ended[len(ended)-1].Attributes()); w.Code != http.StatusCreated || !strings.HasPrefix(got, want) {
				t.Errorf("request %d: %d, the span around it has %s, want %s", i, w.Code, got, want)
			}
		}
		counts := tel.requests(t)
		if counts["order acquired"] != 1 || counts["idempotency acquired"] != 1 || counts["idempotency replayed"] != 1 {
			t.Errorf("counted are %v", counts)
		}
	})
}

// A lock inside that is free does not hide the wait for the lock outside.
func TestTheSpanAroundARequestShowsTheLockThatItWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tel := newTelemetry(t, sdktrace.AlwaysSample())
		store := lockertest.NewMemory()
		l := lockertest.NewLocker(t, store, locker.WithObserver(tel.observer))
		h := httplock.MustNew(l, "order:42")(httplock.MustIdempotency(l, idempotency.NewMemory(), "shop")(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })))
		store.Occupy("order:42", 2*time.Second)
		ctx, span := tel.tracer.Start(t.Context(), root)
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders/42", http.NoBody)
		r.Header.Set("Idempotency-Key", "k")
		h.ServeHTTP(httptest.NewRecorder(), r)
		span.End()
		if got := text(tel.span(t, root).Attributes()); !strings.HasPrefix(got, "name=order result=acquired wait.duration=2") {
			t.Errorf("the span around the request has %s", got)
		}
	})
}
