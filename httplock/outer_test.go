package httplock_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// http.TimeoutHandler replies while its handler still works. Inside of the lock, it would end the
// lock before the work.
func TestATimeoutHandlerInsideOfTheLockIsRefused(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	ran := false
	work := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true })
	lock := httplock.MustNew(l, "a")
	w := httptest.NewRecorder()
	lock(http.TimeoutHandler(work, time.Minute, "")).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", http.NoBody))
	if w.Code != 500 || ran || !strings.Contains(w.Body.String(), httplock.CodeMisconfigured) {
		t.Errorf("inside: %d %s, ran %v", w.Code, w.Body, ran)
	}
	w = httptest.NewRecorder()
	http.TimeoutHandler(lock(work), time.Minute, "").ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/", http.NoBody))
	if w.Code != 200 || !ran {
		t.Errorf("outside: %d %s, ran %v", w.Code, w.Body, ran)
	}
}

type zippedWriter struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (w zippedWriter) Write(p []byte) (int, error) { return w.z.Write(p) }

// compressing compresses the responses of clients that accept gzip.
func compressing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		next.ServeHTTP(zippedWriter{w, z}, r)
		_ = z.Close()
	})
}

// A middleware inside may compress the response for the first client. The client of the repeated
// request may not accept gzip.
func TestARepeatedResponseIsReadableByEveryClient(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	work := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "paid") })
	h := httplock.MustIdempotency(l, idempotency.NewMemory(), "shop")(compressing(work))
	for _, accepted := range []string{"gzip", ""} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", http.NoBody)
		r.Header.Set("Idempotency-Key", "k")
		r.Header.Set("Accept-Encoding", accepted)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 200 || w.Body.String() != "paid" || r.Header.Get("Accept-Encoding") != accepted {
			t.Errorf("%q: %d %q %v", accepted, w.Code, w.Body, w.Header())
		}
	}
}

// A middleware inside could decode the body, and the handler could find another value in it than
// the key. The output of gzip is never JSON; the outputs of deflate and Brotli can be.
func TestAnEncodedBodyIsNotReadForAKey(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	h := httplock.MustNew(l, "stock:{body.sku}")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lease, _ := httplock.FromContext(r)
		_, _ = io.WriteString(w, lease.Key())
	}))
	const plain = `{"sku":"pen"}`
	for _, tc := range []struct {
		encoding []string
		code     int
	}{
		{nil, 200}, {[]string{"identity"}, 200}, {[]string{"gzip"}, 200}, {[]string{" GZIP "}, 200}, {[]string{"deflate"}, 415},
		{[]string{"br"}, 415}, {[]string{"gzip, br"}, 415}, {[]string{"gzip", "br"}, 415}, {[]string{"x"}, 415},
	} {
		r := httptest.NewRequestWithContext(t.Context(), "POST", "/", strings.NewReader(plain))
		r.Header["Content-Encoding"] = tc.encoding
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != tc.code || tc.code == 200 && w.Body.String() != "stock:pen" {
			t.Errorf("%q: %d %s", tc.encoding, w.Code, w.Body)
		}
	}
}
