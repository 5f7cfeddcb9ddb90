package httplock_test

import (
	"net/http"
	"testing"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// At most Limit requests of a key run at the same time, and further requests are refused. The test
// checks this on a server and in memory, because users test their rules in memory.
func TestARuleLimitsRequestsInFlight(t *testing.T) {
	t.Parallel()
	t.Run("Redis", func(t *testing.T) {
		l, err := locker.NewSemaphore(redistest.Start(t).Client(t), 10)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close(t.Context()) }()
		limitsRequests(t, l)
	})
	t.Run("memory", func(t *testing.T) { limitsRequests(t, lockertest.NewLocker(t, lockertest.NewMemory())) })
}

func limitsRequests(t *testing.T, l locker.Locker) {
	t.Helper()
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
