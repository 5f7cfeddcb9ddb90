// Package ginlock_test runs ginlock together with the middlewares that services usually have.
package ginlock_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-contrib/timeout"
	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/contrib/instrumentation/github.com/gin-gonic/gin/otelgin"
	"go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
)

// deadline is the kind of time-out that latchkit recommends. It ends the request's context, and
// the handlers return by themselves.
func deadline(d time.Duration) gin.HandlerFunc {
	return func(c *gin.Context) {
		saved := c.Request.Context()
		ctx, cancel := context.WithTimeout(saved, d)
		defer cancel()
		defer func() { c.Request = c.Request.WithContext(saved) }()
		c.Request = c.Request.WithContext(ctx)
		c.Next()
	}
}

// TestInTheDocumentedOrder sends requests through Recovery, otelgin, a time-out, ginlock and a
// handler, on a real server.
func TestInTheDocumentedOrder(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	for limit, limited := range map[string]func(d time.Duration) gin.HandlerFunc{
		"a deadline in the context": deadline,
		"gin-contrib/timeout":       func(d time.Duration) gin.HandlerFunc { return timeout.New(timeout.WithTimeout(d)) },
	} {
		for name, tc := range map[string]struct {
			within time.Duration
			busy   bool
			opts   []httplock.Option
			handle func(c *gin.Context, store *lockertest.Memory)
			code   int
			body   string
			spans  string
		}{
			"a reply": {
				within: time.Minute, code: 201, body: "paid", spans: "acquire order, release order, POST /orders/:id",
				handle: func(c *gin.Context, _ *lockertest.Memory) { c.String(http.StatusCreated, "paid") },
			},
			"a panic": {
				within: time.Minute, code: 500, spans: "acquire order, release order, POST /orders/:id",
				handle: func(*gin.Context, *lockertest.Memory) { panic("out of ink") },
			},
			"a busy lock": {
				within: time.Minute, busy: true, opts: []httplock.Option{httplock.WithWait(locker.NoWait)}, code: 409, body: `"code":"lock-busy"`,
				spans: "acquire order, POST /orders/:id",
			},
			"a lock that is lost": {
				within: time.Minute, opts: []httplock.Option{httplock.WithTTL(200 * time.Millisecond)}, code: 503, body: `"code":"lock-lost"`,
				spans: "acquire order, release order, POST /orders/:id",
				handle: func(c *gin.Context, store *lockertest.Memory) {
					store.Steal("order:42")
					<-c.Request.Context().Done()
				},
			},
			"a wait that the deadline ends": {
				within: time.Second, busy: true, opts: []httplock.Option{httplock.WithWait(time.Hour)}, code: 409, body: `"code":"lock-busy"`,
				spans: "acquire order, POST /orders/:id",
			},
			"a handler that the deadline ends": {
				within: time.Second, code: 504, body: "late", spans: "acquire order, release order, POST /orders/:id",
				handle: func(c *gin.Context, _ *lockertest.Memory) {
					<-c.Request.Context().Done()
					c.String(http.StatusGatewayTimeout, "late")
				},
			},
		} {
			if limit == "gin-contrib/timeout" && tc.within < time.Minute {
				// When the time of gin-contrib/timeout is over, the handler continues, while
				// Gin already uses the handler's gin.Context for another request. This is a
				// data race even without ginlock.
				continue
			}
			t.Run(limit+"/"+name, func(t *testing.T) {
				spans := tracetest.NewSpanRecorder()
				tracers := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
				observer, err := otellock.New(otellock.WithTracerProvider(tracers), otellock.WithMeterProvider(noop.NewMeterProvider()))
				if err != nil {
					t.Fatal(err)
				}
				store := lockertest.NewMemory()
				if tc.busy {
					store.Occupy("order:42", 0)
				}
				l := lockertest.NewLocker(t, store, locker.WithObserver(observer))
				e := gin.New()
				e.Use(gin.CustomRecoveryWithWriter(io.Discard, func(c *gin.Context, _ any) { c.AbortWithStatus(http.StatusInternalServerError) }))
				e.Use(otelgin.Middleware("shop", otelgin.WithTracerProvider(tracers), otelgin.WithMeterProvider(noop.NewMeterProvider()),
					otelgin.WithSpanNameFormatter(func(c *gin.Context) string { return c.Request.Method + " " + c.FullPath() })))
				e.Use(limited(tc.within))
				e.POST("/orders/:id", ginlock.MustNew(l, "order:{param.id}", tc.opts...), func(c *gin.Context) {
					if _, held := ginlock.FromContext(c); !held {
						t.Error("there is no lease")
					}
					tc.handle(c, store)
				})
				server := httptest.NewServer(e)
				res, err := server.Client().Post(server.URL+"/orders/42", "", http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				server.Close()
				if err != nil || res.StatusCode != tc.code || !strings.Contains(string(body), tc.body) || tc.body == "paid" && string(body) != "paid" {
					t.Errorf("%d %s, %v", res.StatusCode, body, err)
				}
				var names []string
				for _, s := range spans.Ended() {
					names = append(names, s.Name())
				}
				if got := strings.Join(names, ", "); got != tc.spans {
					t.Errorf("spans %s, want %s", got, tc.spans)
				}
				if !tc.busy && !strings.Contains(name, "lost") && store.Len() != 0 {
					t.Error("the lock is left behind")
				}
			})
		}
	}
}
