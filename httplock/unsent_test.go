package httplock_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// leaving is the response to a client that leaves at the first write.
type leaving struct {
	*httptest.ResponseRecorder
	leave context.CancelFunc
}

func (l leaving) Write([]byte) (int, error) {
	l.leave() // net/http ends the request's context before the write returns
	return 0, syscall.EPIPE
}

// leave sends a request to h whose client leaves at the first write of the response.
func leave(t *testing.T, h http.Handler) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h.ServeHTTP(leaving{httptest.NewRecorder(), cancel}, httptest.NewRequestWithContext(ctx, "POST", "/orders/42", http.NoBody))
}

func onceFor(d time.Duration) httplock.Option {
	return httplock.WithRule(func(_ *http.Request, r *locker.Rule) { r.OnceFor = d })
}

// A handler that writes until a write fails ends soon after its client has left, or after its
// response has become too long. A handler that has flushed gets the error at once.
func TestAHandlerThatWritesUntilAWriteFailsEnds(t *testing.T) {
	held := httplock.WithBufferedResponse(3)
	for name, tc := range map[string]struct {
		opts    []httplock.Option
		flushes bool
		most    time.Duration
	}{
		"the client has left":      {nil, false, 2 * time.Second},
		"the response is too long": {[]httplock.Option{held}, false, 2 * time.Second},
		"a stream":                 {nil, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := shop(httplock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}", tc.opts...), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if tc.flushes {
						_ = http.NewResponseController(w).Flush()
					}
					began := time.Now()
					for time.Since(began) < time.Minute {
						if n, err := io.WriteString(w, "paid"); err != nil {
							if after := time.Since(began); after > tc.most || !tc.flushes && after < time.Second/2 {
								t.Errorf("the write failed after %v: %v", after, err)
							}
							return
						} else if n != 4 {
							t.Errorf("%d bytes", n)
						}
						time.Sleep(10 * time.Millisecond) //nolint:forbidigo // a bubble
					}
					t.Error("no write has failed")
				}))
				leave(t, h)
			})
		})
	}
}

// What a handler itself does wrong is reported to it, also under a lock.
func TestAHandlerLearnsOfItsOwnMistakes(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	for name, tc := range map[string]struct {
		do   func(w http.ResponseWriter) error
		want error
	}{
		"no body": {func(w http.ResponseWriter) error {
			w.WriteHeader(http.StatusNoContent)
			_, err := io.WriteString(w, "paid")
			return err
		}, http.ErrBodyNotAllowed},
		"Content-Length": {func(w http.ResponseWriter) error {
			w.Header().Set("Content-Length", "3")
			_, err := io.WriteString(w, "paid")
			return err
		}, http.ErrContentLength},
		"Hijack": {func(w http.ResponseWriter) error {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			_, err = io.WriteString(w, "paid")
			return err
		}, http.ErrHijacked},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan error, 1)
			server := httptest.NewServer(httplock.MustNew(l, "order:42")(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				got <- tc.do(w)
			})))
			defer server.Close()
			if res, err := server.Client().Post(server.URL, "", nil); err == nil {
				_ = res.Body.Close()
			}
			if err := <-got; !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}

// damaged is a file that cannot be read.
type damaged struct{ fs.File }

var errDamaged = errors.New("the disk is damaged")

func (damaged) Read([]byte) (int, error) { return 0, errDamaged }

// A file that cannot be read is a failure of the handler. A client that does not get the file is
// not.
func TestAFileThatCannotBeReadIsNoUnsentResponse(t *testing.T) {
	name := filepath.Join(t.TempDir(), "invoice")
	if err := os.WriteFile(name, make([]byte, 300<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	sends := func(w http.ResponseWriter, damage bool) (int64, error) {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if damage {
			return io.Copy(w, damaged{f})
		}
		return io.Copy(w, f)
	}
	runs := 0
	h := shop(httplock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}", onceFor(time.Hour)), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if runs++; runs == 1 {
			if _, err := sends(w, true); !errors.Is(err, errDamaged) {
				t.Errorf("%v", err)
			}
			panic(http.ErrAbortHandler)
		}
		if n, err := sends(w, false); n != 300<<10 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	}))
	func() {
		defer func() {
			if p := recover(); p != http.ErrAbortHandler {
				t.Errorf("%v", p)
			}
		}()
		send(t.Context(), h, "POST", "/orders/42", "")
	}()
	leave(t, h)
	if w := send(t.Context(), h, "POST", "/orders/42", ""); w.Code != http.StatusConflict || runs != 2 {
		t.Errorf("%d %s, %d runs", w.Code, w.Body, runs)
	}
}

// A file is sent to a client that leaves in the middle. net/http sends it without a buffer, and
// the handler does not learn of the failure.
func TestAFileForAClientThatLeavesIsSentToItsEnd(t *testing.T) {
	name := filepath.Join(t.TempDir(), "invoice")
	const size = 32 << 20
	if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	type result struct {
		n   int64
		err error
	}
	got := make(chan result, 1)
	server := httptest.NewServer(httplock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:42")(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		f, err := os.Open(name)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = f.Close() }()
		w.Header().Set("Content-Length", "33554432")
		n, err := io.Copy(w, f)
		got <- result{n, err}
	})))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: shop\r\nContent-Length: 0\r\n\r\n")
	if _, err := io.ReadFull(conn, make([]byte, 100<<10)); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if r := <-got; r.n != size || r.err != nil {
		t.Errorf("%d bytes, %v", r.n, r.err)
	}
}

// cut is the body of a response whose reader gives up when the client has left.
type cut struct {
	io.Reader
	leave context.CancelFunc
}

func (c cut) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err == io.EOF {
		c.leave()
		err = context.Canceled
	}
	return n, err
}

func (cut) Close() error { return nil }

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A client leaves while a proxy reads the rest of a response. The proxy's read ends before a write
// fails. The service behind the proxy has done the work.
func TestAProxyWhoseClientLeavesWhileItReadsHasDoneTheWork(t *testing.T) {
	for name, opts := range map[string][]httplock.Option{
		"sent": {onceFor(time.Hour)}, "held back": {onceFor(time.Hour), httplock.WithBufferedResponse(1000)},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, leave := context.WithCancel(context.WithValue(t.Context(), http.ServerContextKey, &http.Server{}))
			defer leave()
			runs := 0
			proxy := &httputil.ReverseProxy{
				Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "upstream" },
				Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
					runs++
					return &http.Response{
						StatusCode: http.StatusOK, Header: make(http.Header), Request: r, ContentLength: 10,
						Body: cut{strings.NewReader("pa"), leave},
					}, nil
				}),
			}
			h := shop(httplock.MustNew(lockertest.NewLocker(t, lockertest.NewMemory()), "order:{param.id}", opts...), proxy)
			func() {
				defer func() {
					if p := recover(); p != http.ErrAbortHandler {
						t.Errorf("the response was not aborted: %v", p)
					}
				}()
				send(ctx, h, "POST", "/orders/42", "")
			}()
			if w := send(t.Context(), h, "POST", "/orders/42", ""); w.Code != http.StatusConflict || runs != 1 {
				t.Errorf("%d %s, %d runs", w.Code, w.Body, runs)
			}
		})
	}
}

// A Store must not get a part of a response as the whole, although the client has left, too.
func TestAPartOfAProxiedResponseIsNotStored(t *testing.T) {
	ctx, leave := context.WithCancel(context.WithValue(t.Context(), http.ServerContextKey, &http.Server{}))
	defer leave()
	h := httplock.MustIdempotency(lockertest.NewLocker(t, lockertest.NewMemory()), idempotency.NewMemory(), "shop")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "pa")
		if ctx.Err() == nil {
			leave()
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "id")
	}))
	func() {
		defer func() { _ = recover() }()
		send(ctx, h, "POST", "/", "", "Idempotency-Key", "k")
	}()
	if w := send(t.Context(), h, "POST", "/", "", "Idempotency-Key", "k"); w.Code != 200 || w.Body.String() != "paid" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
