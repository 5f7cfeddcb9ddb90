package otellock_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/contrib/instrumentation/github.com/gin-gonic/gin/otelgin"
	"go.opentelemetry.io/otel/metric/noop"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
)

func TestARequestsLockShowsInItsTraceAndItsKeyDoesNot(t *testing.T) {
	gin.SetMode(gin.TestMode)
	const root = "POST /orders/:id"
	acquired := "acquire customer: Unset fence=N mode=exclusive name=customer result=acquired ttl=30 wait.attempts=1"
	for name, tc := range map[string]struct {
		before func(store *lockertest.Memory)
		handle func(ctx context.Context, store *lockertest.Memory)
		status int
		server string // status and error.type of the request's own span
		spans  []string
	}{
		"acquired": {
			status: http.StatusOK, server: "Unset ",
			spans: []string{
				acquired,
				"hold customer: Unset fence=N mode=exclusive name=customer result=released ttl=30",
				"release customer: Unset fence=N mode=exclusive name=customer result=released ttl=30",
			},
		},
		"refused": {
			before: func(store *lockertest.Memory) { store.Occupy("customer:canary", 0) },
			status: http.StatusConflict, server: "Unset ",
			spans: []string{"acquire customer: Unset mode=exclusive name=customer result=busy ttl=30 wait.attempts=1"},
		},
		"lost": {
			handle: func(ctx context.Context, store *lockertest.Memory) {
				store.Steal("customer:canary")
				<-ctx.Done()
			},
			status: http.StatusServiceUnavailable, server: "Error lock-lost",
			spans: []string{
				acquired,
				"hold customer: Error(lost) error.type=lost fence=N mode=exclusive name=customer result=lost ttl=30",
				"release customer: Error(lost) error.type=lost fence=N mode=exclusive name=customer result=lost ttl=30",
			},
		},
		"unavailable": {
			before: func(store *lockertest.Memory) {
				store.Fail(locker.OpAcquire, &locker.Refusal{Err: errors.New("out of memory")})
			},
			status: http.StatusServiceUnavailable, server: "Error lock-unavailable",
			spans: []string{"acquire customer: Error(unavailable) error.type=unavailable mode=exclusive name=customer result=unavailable ttl=30 wait.attempts=1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tel := newTelemetry(t, sdktrace.AlwaysSample(), otellock.WithHoldSpans())
				store := lockertest.NewMemory()
				if tc.before != nil {
					tc.before(store)
				}
				l := lockertest.NewLocker(t, store, locker.WithObserver(tel.observer))
				e := gin.New()
				e.Use(otelgin.Middleware("shop", otelgin.WithTracerProvider(tel.tracers), otelgin.WithMeterProvider(noop.NewMeterProvider())))
				e.POST("/orders/:id", ginlock.New(l, "customer:{header.X-Customer}", ginlock.WithWait(locker.NoWait)), func(c *gin.Context) {
					if tc.handle != nil {
						tc.handle(c.Request.Context(), store)
					}
				})
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders/42", http.NoBody)
				r.Header.Set("X-Customer", "canary")
				w := httptest.NewRecorder()
				e.ServeHTTP(w, r)

				if w.Code != tc.status {
					t.Errorf("%d %s", w.Code, w.Body)
				}
				if got := strings.Join(tel.told(t), "\n"); got != strings.Join(tc.spans, "\n") {
					t.Errorf("spans:\n%s\nwant:\n%s", got, strings.Join(tc.spans, "\n"))
				}
				request := tel.span(t, root)
				for _, s := range tel.spans.Ended() {
					if s != request && s.Parent().SpanID() != request.SpanContext().SpanID() {
						t.Errorf("%q is no child of the request", s.Name())
					}
				}
				kind := ""
				for _, a := range request.Attributes() {
					if a.Key == "error.type" {
						kind = a.Value.AsString()
					}
				}
				if got := fmt.Sprint(request.Status().Code, " ", kind); got != tc.server {
					t.Errorf("the request's span is %q, want %q", got, tc.server)
				}
				spans, points := tel.everything(t)
				if all := spans + points + w.Body.String(); strings.Contains(all, "canary") {
					t.Errorf("the key was shown: %s", all)
				}
			})
		})
	}
}
