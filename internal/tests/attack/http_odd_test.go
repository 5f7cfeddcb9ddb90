package attack_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

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
	for name, front := range fronts(l, h) {
		server := httptest.NewServer(front)
		t.Cleanup(server.Close)
		res, err := server.Client().Get(server.URL + "/orders/1")
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
	for name, front := range fronts(l, h) {
		server := httptest.NewServer(front)
		t.Cleanup(server.Close)
		conn := dial(t, server, "GET /orders/1 HTTP/1.1\r\nHost: x\r\n\r\n")
		if text, err := io.ReadAll(conn); err != nil || string(text) != "held: true, in store: 1" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	locktest.Eventually(t, "no lock is left", func() bool { return store.Len() == 0 })
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
	locktest.Eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+10 })
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
	for name, front := range fronts(lockertest.NewLocker(t, lockertest.NewMemory()), h, httplock.WithStreamedBody()) {
		server := httptest.NewServer(front)
		t.Cleanup(server.Close)
		res, err := server.Client().Post(server.URL+"/orders/1", "application/json", &zeros{n: size})
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || !strings.HasPrefix(string(body), fmt.Sprint(size)) {
			t.Errorf("%s: streamed: %.100s, %v", name, body, err)
		}
	}
}
