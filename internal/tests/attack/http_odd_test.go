package attack_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// The tests below use features of HTTP beyond a plain request and reply, such as streams of
// events and hijacked connections. With the guard, each feature works as it works without the
// guard, and afterwards no key is locked.

// doors returns servers whose route is guarded for every method. The handler finds the lease of
// its request.
func doors(t *testing.T, l locker.Locker, h http.HandlerFunc, opts ...httplock.Option) map[string]*httptest.Server {
	t.Helper()
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	guard, run := ginlock.MustNew(l, "order:{param.id}", opts...), func(c *gin.Context) { h(c.Writer, c.Request) }
	e.Any("/orders/:id", guard, run)
	e.Handle("PURGE", "/orders/:id", guard, run)
	mux := http.NewServeMux()
	mux.Handle("/orders/{id}", httplock.MustNew(l, "order:{param.id}", opts...)(h))
	servers := make(map[string]*httptest.Server)
	for name, door := range map[string]http.Handler{"net/http": mux, "Gin": e} {
		server := httptest.NewServer(door)
		t.Cleanup(server.Close)
		servers[name] = server
	}
	return servers
}

// reply is a response whose body was read to its end.
type reply struct {
	code    int
	trailer http.Header
}

// call sends a request. It returns the response and its whole body.
func call(t *testing.T, server *httptest.Server, r *http.Request) (reply, string) {
	t.Helper()
	res, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return reply{res.StatusCode, res.Trailer}, string(body)
}

func newRequest(t *testing.T, server *httptest.Server, method string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, server.URL+"/orders/1", body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOddMethodsAreGuarded(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	var ran atomic.Int32
	h := func(w http.ResponseWriter, r *http.Request) {
		if _, ok := locker.FromContext(r.Context()); !ok {
			t.Errorf("%s has no lock", r.Method)
		}
		ran.Add(1)
		_, _ = io.WriteString(w, "done")
	}
	for name, server := range doors(t, l, h, httplock.WithWait(locker.NoWait)) {
		methods := []string{"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "PATCH", "DELETE", "PURGE"}
		if name == "net/http" {
			methods = append(methods, "M-SEARCH", "PROPFIND", "X!#$")
		}
		ran.Store(0)
		for _, method := range methods {
			res, body := call(t, server, newRequest(t, server, method, nil))
			if res.code != http.StatusOK || body != "done" && method != http.MethodHead {
				t.Errorf("%s, %s: %d %s", name, method, res.code, body)
			}
		}
		store.Occupy("order:1", 0)
		for _, method := range methods {
			if res, body := call(t, server, newRequest(t, server, method, nil)); res.code != http.StatusConflict {
				t.Errorf("%s, %s while the lock is busy: %d %s", name, method, res.code, body)
			}
		}
		store.Free("order:1")
		if int(ran.Load()) != len(methods) {
			t.Errorf("%s: the handler ran %d times", name, ran.Load())
		}
	}
}

func TestEarlyHintsAndTrailersPassTheGuard(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	h := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "paid")
		w.Header().Set("X-Sum", "42")
		w.Header().Set(http.TrailerPrefix+"X-Late", "43")
	}
	for name, server := range doors(t, l, h) {
		hints := 0
		r := newRequest(t, server, http.MethodPost, nil)
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
				if code == http.StatusEarlyHints && header.Get("Link") != "" {
					hints++
				}
				return nil
			},
		}))
		res, body := call(t, server, r)
		if res.code != http.StatusCreated || body != "paid" {
			t.Errorf("%s: %d %s", name, res.code, body)
		}
		if res.trailer.Get("X-Sum") != "42" || res.trailer.Get("X-Late") != "43" {
			t.Errorf("%s: the trailers are %v", name, res.trailer)
		}
		if want := map[string]int{"net/http": 1}[name]; hints < want { // other adapters may send no 1xx, because Gin's writer sends none
			t.Errorf("%s: %d early hints", name, hints)
		}
	}
}

// Each event of a stream arrives before the handler makes the next one.
func TestAStreamOfEventsArrivesEventByEvent(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	next := make(chan struct{})
	h := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
				t.Error(r.Context().Err())
			}
		}
	}
	for name, server := range doors(t, l, h) {
		res, err := server.Client().Do(newRequest(t, server, http.MethodGet, nil))
		if err != nil {
			t.Fatal(err)
		}
		event := make([]byte, len("data: 0\n\n"))
		for i := range 3 {
			if _, err := io.ReadFull(res.Body, event); err != nil || string(event) != fmt.Sprintf("data: %d\n\n", i) {
				t.Errorf("%s: event %d is %q, %v", name, i, event, err)
			}
			next <- struct{}{}
		}
		_ = res.Body.Close()
	}
}

// A handler that hijacks the connection keeps its lock until it returns. The guard writes nothing
// to the connection.
func TestAHijackedConnectionBelongsToItsHandler(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	h := func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotImplemented)
			return
		}
		defer func() { _ = conn.Close() }()
		lease, _ := locker.FromContext(r.Context())
		_, _ = fmt.Fprintf(conn, "held: %v, in store: %d", lease.Context().Err() == nil, store.Len())
	}
	for name, server := range doors(t, l, h) {
		conn := dial(t, server, "GET /orders/1 HTTP/1.1\r\nHost: x\r\n\r\n")
		if text, err := io.ReadAll(conn); err != nil || string(text) != "held: true, in store: 1" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	await(t, "no lock is left", func() bool { return store.Len() == 0 })
}

// Files pass the guard unchanged: a file that a client uploads in a form, and files that the server
// sends whole, in ranges, or with validators.
func TestFilesPassTheGuard(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	file := bytes.Repeat([]byte("0123456789"), 100<<10) // 1 MB, more than the guard writes in one part
	h := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			f, _, err := r.FormFile("file")
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			sum := sha256.New()
			_, _ = io.Copy(sum, f)
			_, _ = fmt.Fprintf(w, "%x", sum.Sum(nil))
			return
		}
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, r, "file.txt", time.Time{}, bytes.NewReader(file))
	}
	for name, server := range doors(t, l, h, httplock.WithMaxBody(2<<20)) {
		var form bytes.Buffer
		parts := multipart.NewWriter(&form)
		part, err := parts.CreateFormFile("file", "file.txt")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = part.Write(file)
		_ = parts.Close()
		r := newRequest(t, server, http.MethodPost, &form)
		r.Header.Set("Content-Type", parts.FormDataContentType())
		if res, body := call(t, server, r); body != fmt.Sprintf("%x", sha256.Sum256(file)) {
			t.Errorf("%s: uploaded: %d %.100s", name, res.code, body)
		}
		if res, body := call(t, server, newRequest(t, server, http.MethodGet, nil)); res.code != http.StatusOK || body != string(file) {
			t.Errorf("%s: downloaded: %d, %d bytes", name, res.code, len(body))
		}
		r = newRequest(t, server, http.MethodGet, nil)
		r.Header.Set("Range", "bytes=11-14")
		if res, body := call(t, server, r); res.code != http.StatusPartialContent || body != "1234" {
			t.Errorf("%s: a range: %d %.100s", name, res.code, body)
		}
		r = newRequest(t, server, http.MethodGet, nil)
		r.Header.Set("If-None-Match", `"1"`)
		if res, body := call(t, server, r); res.code != http.StatusNotModified || body != "" {
			t.Errorf("%s: not modified: %d %.100s", name, res.code, body)
		}
	}
}

// Three thousand requests wait for one key. All requests get the key, one at a time. Afterwards
// no lock, no waiter and no goroutine is left.
func TestThreeThousandWaitersOfOneKey(t *testing.T) {
	const waiters = 3000
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	before := runtime.NumGoroutine()
	var inside, served atomic.Int32
	var arrived sync.WaitGroup
	h := func(w http.ResponseWriter, r *http.Request) {
		if inside.Add(1) != 1 {
			t.Error("two requests hold the lock")
		}
		defer inside.Add(-1)
		if r.Header.Get("X-First") != "" {
			arrived.Wait()
		}
		_, _ = io.WriteString(w, "paid")
	}
	for name, door := range guarded(l, "order:{param.id}", h, httplock.WithWait(time.Hour)) {
		arrived.Add(waiters)
		served.Store(0)
		var all sync.WaitGroup
		for range waiters {
			all.Go(func() {
				arrived.Done()
				if w := exchange(door, "/orders/1", "{}"); w.Code == http.StatusOK {
					served.Add(1)
				}
			})
		}
		all.Go(func() { exchange(door, "/orders/1", "{}", "X-First", "1") })
		all.Wait()
		if served.Load() != waiters || store.Len() != 0 || store.Queued() != 0 {
			t.Errorf("%s: %d were served, %d locks and %d waiters are left", name, served.Load(), store.Len(), store.Queued())
		}
	}
	await(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+10 })
}

// zeros is a body of n bytes. It counts how many bytes are read.
type zeros struct{ n, read int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.read >= z.n {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), z.n-z.read))
	clear(p[:n])
	z.read += int64(n)
	return n, nil
}

// When the key of the lock is in a body of 100 MB, the guard refuses the request after it has
// read a small part of the body, with or without a Content-Length. Under WithStreamedBody,
// where the key is in the path, the whole body reaches the handler.
func TestABodyOfAHundredMB(t *testing.T) {
	const size = 100 << 20
	for _, announced := range []bool{true, false} {
		l := &watched{}
		for name, door := range guarded(l, "stock:{body.sku}", nil) {
			body := &zeros{n: size}
			r := httptest.NewRequest(http.MethodPost, "/orders/1", body)
			r.Header.Set("Content-Type", "application/json")
			if r.ContentLength = -1; announced {
				r.ContentLength = size
			}
			w := httptest.NewRecorder()
			door.ServeHTTP(w, r)
			if k := l.take(); w.Code != http.StatusRequestEntityTooLarge || k != "" || body.read > 4<<20 {
				t.Errorf("%s: %d %.100s, key %q, read %d bytes", name, w.Code, w.Body, k, body.read)
			}
		}
	}
	h := func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n, err)
	}
	for name, server := range doors(t, lockertest.NewLocker(t, lockertest.NewMemory()), h, httplock.WithStreamedBody()) {
		if _, body := call(t, server, newRequest(t, server, http.MethodPost, &zeros{n: size})); !strings.HasPrefix(body, fmt.Sprint(size)) {
			t.Errorf("%s: streamed: %.100s", name, body)
		}
	}
}
