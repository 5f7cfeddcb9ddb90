package httplock_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// hijackers is a ResponseWriter that cannot be hijacked, as over HTTP/2.
type hijackers struct{ *httptest.ResponseRecorder }

func (hijackers) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, http.ErrNotSupported }

// A handler may call Hijack, and Hijack may fail. Then a reply is still possible, and the request
// has not succeeded yet.
func TestAFailedHijackIsNoReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockertest.NewMemory()
		h := shop(httplock.MustNew(lockertest.NewLocker(t, store), "order:{param.id}"), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, _, err := http.NewResponseController(w).Hijack(); !errors.Is(err, http.ErrNotSupported) {
				t.Error(err)
			}
			store.Steal("order:42")
			<-r.Context().Done()
		}))
		w := hijackers{httptest.NewRecorder()}
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "POST", "/orders/42", http.NoBody))
		if w.Code != http.StatusServiceUnavailable {
			t.Errorf("%d %s; the lock was lost", w.Code, w.Body)
		}
	})
}

// A response that is too long to be stored is sent as it is written, with its trailers.
func TestALongResponseHasItsTrailers(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	server := httptest.NewServer(httplock.MustIdempotency(l, idempotency.NewMemory(), "shop")(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 65<<10))
		w.Header().Set(http.TrailerPrefix+"X-Sum", "42")
	})))
	t.Cleanup(server.Close)
	r, err := http.NewRequestWithContext(t.Context(), "POST", server.URL, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", "k")
	res, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if n, err := io.Copy(io.Discard, res.Body); err != nil || n != 65<<10 || res.Trailer.Get("X-Sum") != "42" {
		t.Errorf("%d bytes, %v, trailers %v", n, err, res.Trailer)
	}
}

// A handler that copies an empty source to the ResponseWriter has replied. So with Rule.OnceFor,
// the work counts as done.
func TestACopyOfAnEmptySourceIsAReply(t *testing.T) {
	runs := 0
	h := httplock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:42",
		httplock.WithRule(func(_ *http.Request, r *locker.Rule) { r.OnceFor = time.Hour }))(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs++
		_, _ = io.Copy(w, struct{ io.Reader }{strings.NewReader("")})
	}))
	server := httptest.NewServer(h)
	defer server.Close()
	for range 2 {
		response, err := server.Client().Post(server.URL, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
	}
	if runs != 1 {
		t.Errorf("%d runs, want one", runs)
	}
}
