package httplock_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/iotest"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A body can break its framing, such as chunks with a wrong length. The client made this
// mistake: it must not be told to come back later, and no operator must look at the lock
// server.
func TestABrokenBodyIsTheClientsMistake(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	var seen []*httplock.Problem
	see := problems(&seen)
	for name, guard := range map[string]func(http.Handler) http.Handler{
		"a key in the path": httplock.MustNew(l, "order:{param.id}", see),
		"a key in the body": httplock.MustNew(l, "order:{body.id}", see),
		"fail open":         httplock.MustNew(l, "order:{param.id}", see, httplock.WithFailOpen()),
		"idempotency":       httplock.MustIdempotency(l, idempotency.NewMemory(), "shop", see),
	} {
		seen = nil
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/orders/42", iotest.ErrReader(errors.New("malformed chunked encoding")))
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		shop(guard, paid).ServeHTTP(w, r)
		if w.Code != http.StatusBadRequest || w.Header().Get("Retry-After") != "" {
			t.Errorf("%s: %d %v %s", name, w.Code, w.Header(), w.Body)
		}
		if len(seen) != 1 || seen[0].Failure() {
			t.Errorf("%s: %v", name, seen)
		}
	}
}
