package httplock_test

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// hijackers is a ResponseWriter that cannot be hijacked, as over HTTP/2.
type hijackers struct{ *httptest.ResponseRecorder }

func (hijackers) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, http.ErrNotSupported }

// A handler may ask for the connection in vain. Then a reply is still possible, and nothing has
// succeeded yet.
func TestAFailedHijackIsNoReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockertest.NewMemory()
		h := shop(httplock.New(lockertest.NewLocker(t, store), "order:{param.id}"), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
