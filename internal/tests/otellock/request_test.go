package otellock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/contrib/instrumentation/github.com/gin-gonic/gin/otelgin"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/latchkit/latchkit/internal/store"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"

	otellock "github.com/latchkit/latchkit/otel"
)

// root is the name of the span of each request.
const root = "POST /orders/{id}"

// exchange is one request: its setup, its handler, and the telemetry that it must leave.
type exchange struct {
	key    httplock.Key // the default is "customer:{header.X-Customer}"
	opts   []httplock.Option
	locker []locker.Option
	remote idempotency.Store // if remote is set, the request runs under Idempotency, which uses this Store

	before func(t *testing.T, w *stage)
	handle func(ctx context.Context, w *stage, reply io.Writer)
	body   string
	header []string

	status int
	code   string // the code of the Problem
	retry  string // Retry-After
	failed bool   // the request's own span has the error.type of the code
	result string // the lock's result on the span; default: code with _ for -, or "acquired"
	spans  []string
}

// stage is what a request meets: the Store, the Locker, and a way to disconnect the client.
type stage struct {
	store  *lockertest.Memory
	locker *locker.Engine
	cancel context.CancelFunc // disconnects the client
}

const (
	acquired = "acquire customer: Unset fence=N mode=exclusive name=customer result=acquired ttl=30 wait.attempts=1"
	held     = "hold customer: Unset fence=N mode=exclusive name=customer result=released ttl=30"
	released = "release customer: Unset fence=N mode=exclusive name=customer result=released ttl=30"
)

func noWait() []httplock.Option { return []httplock.Option{httplock.WithWait(locker.NoWait)} }

func occupied(_ *testing.T, w *stage) { w.store.Occupy("customer:canary", 1500*time.Millisecond) }

func rule(set func(r *locker.Rule)) []httplock.Option {
	return []httplock.Option{httplock.WithRule(func(_ *http.Request, r *locker.Rule) { set(r) })}
}

// exchanges has a request for each reply in httplock's table of replies, by the name of the
// case.
var exchanges = map[string]exchange{
	"acquired": {status: 200, spans: []string{acquired, held, released}},
	"busy": {
		opts: noWait(), before: occupied, status: 409, code: "lock-busy", retry: "1",
		spans: []string{"acquire customer: Unset mode=exclusive name=customer result=busy ttl=30 wait.attempts=1"},
	},
	"busy behind a holder with a span": {
		opts: noWait(), before: func(t *testing.T, w *stage) { holds(t, w.store, "customer:canary") }, status: 409, code: "lock-busy", retry: "1",
		spans: []string{"acquire customer: Unset links=holder mode=exclusive name=customer result=busy ttl=30 wait.attempts=1"},
	},
	"busy, 423": {
		opts: append(noWait(), httplock.WithStatus(423)), before: occupied, status: 423, code: "lock-busy", retry: "1",
		spans: []string{"acquire customer: Unset mode=exclusive name=customer result=busy ttl=30 wait.attempts=1"},
	},
	"busy, 429": {
		opts: append(noWait(), httplock.WithStatus(429)), before: occupied, status: 429, code: "lock-busy", retry: "1",
		spans: []string{"acquire customer: Unset mode=exclusive name=customer result=busy ttl=30 wait.attempts=1"},
	},
	"busy for as long as one waits": {
		opts: []httplock.Option{httplock.WithWait(500 * time.Millisecond)}, before: occupied, status: 409, code: "lock-busy", retry: "1",
		spans: []string{"acquire customer: Error(busy) error.type=busy mode=exclusive name=customer result=timeout ttl=30 wait.attempts=N"},
	},
	"too many waiters": {
		locker: []locker.Option{locker.WithMaxWaiters(1)},
		before: func(t *testing.T, w *stage) {
			w.store.Occupy("customer:canary", 0)
			go func() { _, _ = w.locker.Acquire(t.Context(), locker.Rule{Key: "customer:canary", Name: "other"}) }()
			synctest.Wait()
		},
		status: 429, code: "too-many-waiters", retry: "1",
		spans: []string{"acquire customer: Error(too_many_waiters) error.type=too_many_waiters mode=exclusive name=customer result=too_many_waiters ttl=30 wait.attempts=0"},
	},
	"done before": {
		opts: rule(func(r *locker.Rule) { r.OnceFor = time.Hour }),
		before: func(t *testing.T, w *stage) {
			if err := locker.Run(t.Context(), w.locker, locker.Rule{Key: "customer:canary", Name: "other", OnceFor: time.Hour}, func(context.Context) error { return nil }); err != nil {
				t.Error(err)
			}
		},
		status: 409, code: "already-done",
		spans: []string{"acquire customer: Unset mode=exclusive name=customer result=done ttl=30 wait.attempts=1"},
	},
	"a key without its part": {key: "customer:{header.X-Nobody}", status: 400, code: "invalid-key"},
	"a key that is kept": {
		key: "{header.X-Reserved}:x", header: []string{"X-Reserved", "latchkit"}, status: 400, code: "invalid-key",
	},
	"a body that is too large": {
		key: "customer:{body.id}", opts: []httplock.Option{httplock.WithMaxBody(5)}, body: `{"id": 1}`, status: 413, code: "body-too-large",
	},
	"a rule that cannot be": {
		opts: rule(func(r *locker.Rule) { r.TTL = -1 }), status: 500, code: "lock-misconfigured", failed: true,
	},
	"unavailable": {
		before: func(_ *testing.T, w *stage) {
			w.store.Fail(locker.OpAcquire, &store.Refusal{Err: errors.New("out of memory")})
		},
		status: 503, code: "lock-unavailable", retry: "1", failed: true,
		spans: []string{"acquire customer: Error(unavailable) error.type=unavailable mode=exclusive name=customer result=unavailable ttl=30 wait.attempts=1"},
	},
	"unavailable, fail open": {
		opts: []httplock.Option{httplock.WithFailOpen()},
		before: func(_ *testing.T, w *stage) {
			w.store.Fail(locker.OpAcquire, &store.Refusal{Err: errors.New("out of memory")})
		},
		status: 200, failed: true, code: "lock-unavailable", result: "unguarded",
		spans: []string{"acquire customer: Error(unavailable) error.type=unavailable mode=exclusive name=customer result=unavailable ttl=30 wait.attempts=1"},
	},
	"closed": {
		before: func(t *testing.T, w *stage) {
			if err := w.locker.Close(t.Context()); err != nil {
				t.Error(err)
			}
		},
		status: 503, code: "lock-closed", retry: "1",
	},
	"lost": {
		handle: func(ctx context.Context, w *stage, _ io.Writer) {
			w.store.Steal("customer:canary")
			<-ctx.Done()
		},
		status: 503, code: "lock-lost", failed: true,
		spans: []string{
			acquired,
			"hold customer: Error(lost) error.type=lost fence=N mode=exclusive name=customer result=lost ttl=30",
			"release customer: Error(lost) error.type=lost fence=N mode=exclusive name=customer result=lost ttl=30",
		},
	},
	"revoked": {
		handle: func(ctx context.Context, w *stage, _ io.Writer) {
			lease, _ := locker.FromContext(ctx)
			_ = w.locker.Revoke(context.Background(), "customer:canary", lease.Fence(), "drill")
			<-ctx.Done()
		},
		status: 503, code: "lock-lost", failed: true,
		spans: []string{
			acquired,
			"hold customer: Error(revoked) error.type=revoked fence=N mode=exclusive name=customer result=revoked ttl=30",
			"release customer: Error(revoked) error.type=revoked fence=N mode=exclusive name=customer result=revoked ttl=30",
		},
	},
	"expired": {
		opts:   rule(func(r *locker.Rule) { r.EndAfter = time.Second }),
		handle: func(ctx context.Context, _ *stage, _ io.Writer) { <-ctx.Done() },
		status: 503, code: "lock-lost", failed: true,
		spans: []string{
			acquired,
			"hold customer: Error(expired) error.type=expired fence=N mode=exclusive name=customer result=expired ttl=30",
			"release customer: Error(expired) error.type=expired fence=N mode=exclusive name=customer result=expired ttl=30",
		},
	},
	"a key that came with another request": {
		remote: reusedKey{}, header: []string{"Idempotency-Key", "k"}, status: 422, code: "idempotency-key-reused",
		spans: nil, // no spans, because the stored record is found before a lock is acquired
	},
	"a client that goes away": {
		before: func(_ *testing.T, w *stage) {
			w.store.Occupy("customer:canary", 0)
			time.AfterFunc(time.Second, w.cancel)
		},
		status: 499, code: "client-gone",
		spans: []string{"acquire customer: Error(canceled) error.type=canceled mode=exclusive name=customer result=canceled ttl=30 wait.attempts=N"},
	},
	"a handler that panics": {
		handle: func(context.Context, *stage, io.Writer) { panic("out of ink") },
		status: 500,
		spans:  []string{acquired, held, released},
	},
}

// reusedKey is a Store that reports, for every key, that another request has used the same key.
type reusedKey struct{ idempotency.Store }

func (reusedKey) Load(context.Context, string) (idempotency.Record, error) {
	return idempotency.Record{Run: strings.Repeat("x", 48), Open: true}, nil
}

// adapters build the server of an exchange. The framework's tracing and recovery are outside of
// the lock.
var adapters = map[string]func(x exchange, w *stage, tel *telemetry, see func(*httplock.Problem)) http.Handler{
	"ginlock": func(x exchange, w *stage, tel *telemetry, see func(*httplock.Problem)) http.Handler {
		e := gin.New()
		e.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(http.StatusInternalServerError) }))
		e.Use(otelgin.Middleware("shop", otelgin.WithTracerProvider(tel.tracers), otelgin.WithMeterProvider(noop.NewMeterProvider()),
			otelgin.WithSpanNameFormatter(func(*gin.Context) string { return root })))
		e.Use(func(c *gin.Context) {
			c.Next()
			if p, ok := ginlock.Outcome(c); ok {
				see(p)
			}
		})
		guard := ginlock.MustNew
		if x.remote != nil {
			guard = func(l locker.Locker, k httplock.Key, opts ...httplock.Option) gin.HandlerFunc {
				return ginlock.MustIdempotency(l, x.remote, "shop", opts...)
			}
		}
		e.POST("/orders/:id", guard(w.locker, x.key, x.opts...), func(c *gin.Context) {
			if x.handle != nil {
				x.handle(c.Request.Context(), w, c.Writer)
			}
		})
		return e
	},
	"httplock": func(x exchange, w *stage, tel *telemetry, see func(*httplock.Problem)) http.Handler {
		opts := append(slices.Clip(x.opts), httplock.WithObserve(func(r *http.Request, p *httplock.Problem) {
			see(p)
			if p.Failure() {
				span := trace.SpanFromContext(r.Context())
				span.SetStatus(codes.Error, p.Code)
				span.SetAttributes(attribute.String("error.type", p.ErrorType()))
			}
		}))
		middleware := func() func(http.Handler) http.Handler {
			if x.remote != nil {
				return httplock.MustIdempotency(w.locker, x.remote, "shop", opts...)
			}
			return httplock.MustNew(w.locker, x.key, opts...)
		}()
		mux := http.NewServeMux()
		mux.Handle(root, middleware(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if x.handle != nil {
				x.handle(r.Context(), w, rw)
			}
		})))
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			ctx, span := tel.tracer.Start(r.Context(), root)
			defer span.End()
			defer func() {
				if recover() != nil {
					rw.WriteHeader(http.StatusInternalServerError)
				}
			}()
			mux.ServeHTTP(rw, r.WithContext(ctx))
		})
	},
}

func TestEachReplyAndTheSpansThatItLeavesBehind(t *testing.T) {
	gin.SetMode(gin.TestMode)
	for adapter, serve := range adapters {
		for name, x := range exchanges {
			t.Run(adapter+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { x.check(t, serve) })
			})
		}
	}
}

func (x exchange) check(t *testing.T, serve func(exchange, *stage, *telemetry, func(*httplock.Problem)) http.Handler) {
	tel := newTelemetry(t, sdktrace.AlwaysSample(), otellock.WithHoldSpans())
	store := lockertest.NewMemory()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &stage{store: store, locker: lockertest.NewLocker(t, store, append(x.locker, locker.WithObserver(tel.observer))...), cancel: cancel}
	if x.key == "" {
		x.key = "customer:{header.X-Customer}"
	}
	var told *httplock.Problem
	handler := serve(x, w, tel, func(p *httplock.Problem) { told = p })
	if x.before != nil {
		x.before(t, w)
	}
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders/42", strings.NewReader(x.body))
	r.Header.Set("X-Customer", "canary")
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(x.header); i += 2 {
		r.Header.Set(x.header[i], x.header[i+1])
	}
	rec := httptest.NewRecorder()
	handler.ServeHTTP(rec, r)

	code := ""
	if told != nil {
		code = told.Code
	}
	if rec.Code != x.status || code != x.code || rec.Header().Get("Retry-After") != x.retry {
		t.Errorf("%d %s, code %q, Retry-After %q; want %d, %q, %q", rec.Code, rec.Body, code, rec.Header().Get("Retry-After"), x.status, x.code, x.retry)
	}
	if told != nil && x.status >= 400 && x.status != 499 && !strings.Contains(rec.Body.String(), `"code":"`+x.code+`"`) {
		t.Errorf("the body is %s", rec.Body)
	}
	if got := strings.Join(ours(tel.spanLines(t)), "\n"); got != strings.Join(x.spans, "\n") {
		t.Errorf("spans:\n%s\nwant:\n%s", got, strings.Join(x.spans, "\n"))
	}
	request := tel.span(t, root)
	for _, s := range tel.spans.Ended() {
		if s != request && s.Parent().SpanID() != request.SpanContext().SpanID() && !byTheTest(s.Name()) {
			t.Errorf("%q is no child of the request", s.Name())
		}
	}
	tel.surrounded(t, request, cmp.Or(x.result, strings.ReplaceAll(x.code, "-", "_"), "acquired"))
	kind := ""
	for _, a := range request.Attributes() {
		if a.Key == "error.type" {
			kind = a.Value.AsString()
		}
	}
	if x.failed && (request.Status().Code != codes.Error || kind != x.code) || !x.failed && kind != "" {
		t.Errorf("the request's span: %v, error.type %q", request.Status(), kind)
	}
	spans, points := tel.everything(t)
	if all := spans + points + fmt.Sprint(rec.Body, rec.Header()); strings.Contains(all, "canary") {
		t.Errorf("the key was shown: %s", all)
	}
}

// byTheTest reports whether the span is of an operation that the test itself has called, such
// as a revocation.
func byTheTest(span string) bool {
	return strings.HasSuffix(span, " other") || strings.HasPrefix(span, "revoke ")
}

// ours returns the lines without those for which byTheTest returns true, and writes N for the
// number of a waiter's attempts.
func ours(lines []string) (kept []string) {
	for _, line := range lines {
		name, _, _ := strings.Cut(line, ":")
		if byTheTest(name) {
			continue
		}
		if before, attempts, ok := strings.Cut(line, " wait.attempts="); ok && attempts != "0" && attempts != "1" {
			line = before + " wait.attempts=N"
		}
		kept = append(kept, line)
	}
	return kept
}
