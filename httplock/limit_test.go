package httplock_test

import (
	"net/http"
	"testing"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// At most Limit requests of a key run at the same time, and further requests are refused.
func TestARuleLimitsRequestsInFlight(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	guard, err := httplock.FromRules(l, httplock.Rules{
		"POST /reports/{tenant}": {Key: "reports:{param.tenant}", Limit: 3, Weight: 1, Wait: locker.NoWait},
	})
	if err != nil {
		t.Fatal(err)
	}
	const route = "POST /reports/{tenant}"
	entered, leave := make(chan struct{}), make(chan struct{})
	mux := http.NewServeMux()
	mux.Handle(route, guard.Wrap(route, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		entered <- struct{}{}
		<-leave
	})))
	codes := make(chan int, 3)
	for range 3 {
		go func() { codes <- send(t.Context(), mux, "POST", "/reports/7", "").Code }()
		<-entered
	}
	if w := send(t.Context(), mux, "POST", "/reports/7", ""); w.Code != http.StatusConflict || w.Header().Get("Retry-After") == "" {
		t.Errorf("the fourth request: %d with Retry-After %q", w.Code, w.Header().Get("Retry-After"))
	}
	close(leave)
	for range 3 {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("a request that was let in: %d", code)
		}
	}
}

// A rule may limit the requests of a route and give them idempotency. Then three payments run
// together, but each payment runs once, although the Locker is a semaphore.
func TestALimitedRouteRunsEachIdempotencyKeyOnce(t *testing.T) {
	t.Parallel()
	l, err := locker.NewSemaphore(redistest.Start(t).Client(t), 3)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close(t.Context()) }()
	const route = "POST /pay"
	guard, err := httplock.FromRules(l, httplock.Rules{route: {Key: "pay", Limit: 3, Wait: locker.NoWait, Idempotency: "shop"}},
		httplock.WithStore(idempotency.NewMemory()))
	if err != nil {
		t.Fatal(err)
	}
	pay := func(h http.Handler, key string) int {
		return send(t.Context(), h, "POST", "/pay", "", "Idempotency-Key", key).Code
	}
	runs := make(map[string]int)
	var h http.Handler
	h = guard.Wrap(route, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		if runs[key]++; runs[key] > 1 {
			return
		}
		if code := pay(h, key); code != http.StatusConflict {
			t.Errorf("the payment %s came again while it ran: %d, want 409", key, code)
		}
		if next := key + "I"; len(next) <= 3 { // the next payment begins while this one runs
			if code := pay(h, next); code != http.StatusCreated {
				t.Errorf("the payment %s: %d", next, code)
			}
		} else if code := pay(h, next); code != http.StatusConflict {
			t.Errorf("a fourth payment at a time: %d, want 409", code)
		}
		w.WriteHeader(http.StatusCreated)
	}))
	if code := pay(h, "I"); code != http.StatusCreated {
		t.Errorf("the first payment: %d", code)
	}
	for key, n := range runs {
		if n != 1 {
			t.Errorf("the payment %s ran %d times", key, n)
		}
	}
}
