package otellock_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"

	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
)

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
