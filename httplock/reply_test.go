package httplock_test

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/iotest"
	"testing/synctest"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
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

// gzipped compresses each response. Like gorilla/handlers, it sets Content-Encoding before it
// calls the handler.
func gzipped(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer func() { _ = z.Close() }()
		h.ServeHTTP(compressed{w, z}, r)
	})
}

type compressed struct {
	http.ResponseWriter
	to io.Writer
}

func (c compressed) Write(p []byte) (int, error) { return c.to.Write(p) }

// The reply of the guard passes through a compressor that stands in front of the guard. Without
// its Content-Encoding, a client could not read the reply.
func TestAProblemKeepsTheEncodingOfACompressorOutside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockertest.NewMemory()
		l := lockertest.NewLocker(t, store)
		overtaken := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			w.Header().Set("Content-Length", "4")
			w.Header().Set("ETag", `"42"`)
			store.Steal("order:42")
			<-r.Context().Done()
		})
		store.Occupy("order:1", 0)
		for target, code := range map[string]string{"/orders/1": httplock.CodeBusy, "/orders/42": httplock.CodeLost} {
			h := gzipped(shop(httplock.MustNew(l, "order:{param.id}", httplock.WithWait(locker.NoWait)), overtaken))
			w := send(t.Context(), h, "POST", target, "")
			var p httplock.Problem
			z, err := gzip.NewReader(w.Body)
			if err == nil {
				err = json.NewDecoder(z).Decode(&p)
			}
			if err != nil || p.Code != code || w.Header().Get("Content-Encoding") != "gzip" {
				t.Errorf("%v %q, %v, want %s", err, p.Code, w.Header(), code)
			}
			if w.Header().Get("Content-Length") != "" || w.Header().Get("ETag") != "" {
				t.Errorf("the reply has headers of the handler: %v", w.Header())
			}
		}
	})
}
