package attack_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// Over HTTP/2, many requests share a connection. When one request stalls, the guard must end this
// request, but not the other requests of the connection.

// http2 serves h over HTTP/2. The server is closed at the end of the test.
func http2(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// request sends a request over HTTP/2. It returns the response when the response's header has
// arrived.
func request(t *testing.T, server *httptest.Server, body io.Reader, header ...string) (code int, rest io.Reader) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/orders/1", body)
	if err != nil {
		t.Error(err)
		return 0, http.NoBody
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := server.Client().Do(r)
	if err != nil {
		t.Error(err)
		return 0, http.NoBody
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	if res.ProtoMajor != 2 {
		t.Errorf("the response came over %s", res.Proto)
	}
	return res.StatusCode, res.Body
}

func TestAStalledUploadOverHTTP2LosesItsHold(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	ends, entered := make(chan error, 200), make(chan struct{}, 200)
	h := func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			ends <- errors.Join(err, context.Cause(r.Context()))
			return // the handler writes no reply, so the guard replies
		}
		_, _ = io.WriteString(w, "paid")
	}
	for name, front := range fronts(l, h, httplock.WithWait(time.Minute), httplock.WithStreamedBody(), httplock.WithStallTimeout(200*time.Millisecond)) {
		t.Run(name, func(t *testing.T) {
			server := http2(t, front)
			body, feed := io.Pipe()
			t.Cleanup(func() { _ = feed.Close() })
			go func() { _, _ = io.WriteString(feed, "{") }() // afterwards the client sends nothing more
			replied := make(chan string, 1)
			go func() {
				code, rest := request(t, server, body)
				text, _ := io.ReadAll(rest)
				replied <- fmt.Sprint(code, " ", string(text))
			}()
			<-entered
			hundred(t, server)
			if err := <-ends; !errors.Is(err, httplock.ErrStalled) {
				t.Errorf("the upload ended with %v", err)
			}
			if got := <-replied; !strings.HasPrefix(got, "408 ") {
				t.Errorf("%s, want 408", got)
			}
			for len(entered) > 0 {
				<-entered
			}
		})
	}
}

func TestAClientThatDoesNotReadOverHTTP2LosesItsHold(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	ends := make(chan error, 1)
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Large") == "" {
			_, _ = io.WriteString(w, "paid")
			return
		}
		var err error
		for i := 0; err == nil && i < 1000; i++ {
			_, err = w.Write(make([]byte, 1<<20))
		}
		ends <- errors.Join(err, context.Cause(r.Context()))
	}
	for name, front := range fronts(l, h, httplock.WithWait(time.Minute), httplock.WithStallTimeout(200*time.Millisecond)) {
		t.Run(name, func(t *testing.T) {
			server := http2(t, front)
			request(t, server, strings.NewReader("{}"), "X-Large", "1") // when the header has arrived, the lock is held
			hundred(t, server)
			if err := <-ends; !errors.Is(err, httplock.ErrStalled) {
				t.Errorf("the response ended with %v", err)
			}
		})
	}
}
