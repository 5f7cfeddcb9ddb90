package httplock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// numbered returns a handler that answers its n-th request with n.
func numbered(runs *atomic.Int32) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Add("X-Receipt", "a")
		w.Header().Add("X-Receipt", "b")
		w.Header().Set("Set-Cookie", "session=1")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "run %d of %s", runs.Add(1), body)
	}
}

func TestARequestThatComesAgainIsAnsweredAndNotRun(t *testing.T) {
	var runs atomic.Int32
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	h := shop(httplock.MustIdempotency(l, idempotency.NewMemory(), "{header.X-Tenant}"), numbered(&runs))
	// The outer handler sets headers for each request, and these headers are not stored.
	outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
		h.ServeHTTP(w, r)
	})
	post := func(key, tenant, id string) *httptest.ResponseRecorder {
		return send(t.Context(), outer, "POST", "/orders/42", "two books", "Idempotency-Key", key, "X-Tenant", tenant, "X-Request-Id", id)
	}
	first := post("k1", "acme", "1").Result()
	if body, _ := io.ReadAll(first.Body); first.StatusCode != 201 || string(body) != "run 1 of two books" || first.Header.Get("Idempotency-Replayed") != "" || first.Header.Get("Set-Cookie") == "" {
		t.Fatalf("%d %s %v", first.StatusCode, body, first.Header)
	}
	for _, key := range []string{"k1", `"k1"`} {
		again := post(key, "acme", "2").Result()
		body, _ := io.ReadAll(again.Body)
		if again.StatusCode != 201 || string(body) != "run 1 of two books" || again.Header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%d %s %v", again.StatusCode, body, again.Header)
		}
		if h := again.Header; fmt.Sprint(h["X-Receipt"]) != "[a b]" || h.Get("X-Request-Id") != "2" || h.Get("Set-Cookie") != "" || h.Get("Content-Type") != "text/plain" {
			t.Errorf("%v", h)
		}
	}
	if w := post("k2", "acme", "3"); w.Body.String() != "run 2 of two books" {
		t.Errorf("another key: %s", w.Body)
	}
	if w := post("k1", "umbrella", "4"); w.Body.String() != "run 3 of two books" {
		t.Errorf("another tenant's key: %s", w.Body)
	}
}

func TestAKeyThatComesWithAnotherRequestIsRefused(t *testing.T) {
	var runs atomic.Int32
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	h := httplock.MustIdempotency(l, idempotency.NewMemory(), "shop")(numbered(&runs))
	header := []string{"Idempotency-Key", "k1", "Content-Type", "application/json"}
	send(t.Context(), h, "POST", "/orders/42?v=1", "{}", header...)
	for name, w := range map[string]*httptest.ResponseRecorder{
		"body":         send(t.Context(), h, "POST", "/orders/42?v=1", "{ }", header...),
		"no body":      send(t.Context(), h, "POST", "/orders/42?v=1", "", header...),
		"path":         send(t.Context(), h, "POST", "/orders/43?v=1", "{}", header...),
		"query":        send(t.Context(), h, "POST", "/orders/42?v=2", "{}", header...),
		"method":       send(t.Context(), h, "PUT", "/orders/42?v=1", "{}", header...),
		"content type": send(t.Context(), h, "POST", "/orders/42?v=1", "{}", "Idempotency-Key", "k1", "Content-Type", "text/plain"),
	} {
		if w.Code != 422 || !strings.Contains(w.Body.String(), `"code":"idempotency-key-reused"`) {
			t.Errorf("another %s: %d %s", name, w.Code, w.Body)
		}
	}
	if w := send(t.Context(), h, "POST", "/orders/42?v=1", "{}", header...); w.Code != 201 || runs.Load() != 1 {
		t.Errorf("the same request: %d %s", w.Code, w.Body)
	}
}

func TestWhichRequestsNeedAKey(t *testing.T) {
	var runs atomic.Int32
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	h := httplock.MustIdempotency(l, idempotency.NewMemory(), "{header.X-Tenant}")(numbered(&runs))
	for name, tc := range map[string]struct {
		method string
		header []string
		code   int
		body   string
	}{
		"a safe method":       {"GET", nil, 201, "run"},
		"no key":              {"POST", []string{"X-Tenant", "acme"}, 400, "the request lacks the header Idempotency-Key"},
		"an empty key":        {"POST", []string{"X-Tenant", "acme", "Idempotency-Key", `""`}, 400, "the request lacks the header Idempotency-Key"},
		"a key without owner": {"POST", []string{"Idempotency-Key", "k"}, 400, `the request lacks the header \"X-Tenant\"`},
		"a very long key":     {"POST", []string{"X-Tenant", "acme", "Idempotency-Key", strings.Repeat("k", 256)}, 400, "it is longer than 255 bytes"},
		"a long key":          {"POST", []string{"X-Tenant", "acme", "Idempotency-Key", strings.Repeat("k", 255)}, 201, "run"},
	} {
		if w := send(t.Context(), h, tc.method, "/", "", tc.header...); w.Code != tc.code || !strings.Contains(w.Body.String(), tc.body) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

func TestWhatAsksToBeTriedAgainIsNotRemembered(t *testing.T) {
	for name, tc := range map[string]struct {
		status int
		header string
		runs   int32
	}{
		"created": {201, "", 1}, "bad request": {400, "", 1}, "conflict": {409, "", 1},
		"server error": {500, "", 2}, "bad gateway": {502, "", 2}, "too many requests": {429, "", 2}, "too early": {425, "", 2}, "time-out": {408, "", 2},
		"a busy lock inside": {409, "Retry-After", 2},
	} {
		var runs atomic.Int32
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		h := httplock.MustIdempotency(l, idempotency.NewMemory(), "shop")(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			runs.Add(1)
			if tc.header != "" {
				w.Header().Set(tc.header, "1")
			}
			w.WriteHeader(tc.status)
		}))
		for range 2 {
			if w := send(t.Context(), h, "POST", "/", "", "Idempotency-Key", "k"); w.Code != tc.status {
				t.Errorf("%s: %d", name, w.Code)
			}
		}
		if runs.Load() != tc.runs {
			t.Errorf("%s: %d runs, want %d", name, runs.Load(), tc.runs)
		}
	}
}

func TestALongResponseIsSentAndNotRunAgain(t *testing.T) {
	var runs atomic.Int32
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	h := httplock.MustIdempotency(l, idempotency.NewMemory(), "shop")(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs.Add(1)
		for range 4 {
			_, _ = io.WriteString(w, strings.Repeat("x", 20<<10))
		}
	}))
	if w := send(t.Context(), h, "POST", "/", "", "Idempotency-Key", "k"); w.Code != 200 || w.Body.String() != strings.Repeat("x", 80<<10) {
		t.Errorf("%d, %d bytes", w.Code, w.Body.Len())
	}
	if w := send(t.Context(), h, "POST", "/", "", "Idempotency-Key", "k"); w.Code != 409 || !strings.Contains(w.Body.String(), `"code":"already-done"`) || runs.Load() != 1 {
		t.Errorf("again: %d %s, %d runs", w.Code, w.Body, runs.Load())
	}
}

// faulty is a Store that fails when the test asks for it.
type faulty struct {
	idempotency.Store
	load, save error
}

func (f *faulty) Load(ctx context.Context, key string) (idempotency.Record, error) {
	if f.load != nil {
		return idempotency.Record{}, f.load
	}
	return f.Store.Load(ctx, key)
}

func (f *faulty) Swap(ctx context.Context, key string, old, next idempotency.Record, d time.Duration) (idempotency.Record, error) {
	if f.save != nil && !next.Open {
		return idempotency.Record{}, f.save
	}
	return f.Store.Swap(ctx, key, old, next, d)
}

func TestAStoreThatFails(t *testing.T) {
	down := errors.New("down")
	for name, tc := range map[string]struct {
		load, save error
		opts       []httplock.Option
		code       int
		reply      string
		runs       int32
	}{
		"before":            {load: down, code: 503, reply: `"code":"answers-unavailable"`},
		"before, fail open": {load: down, opts: []httplock.Option{httplock.WithFailOpen()}, code: 201, runs: 1},
		"after":             {save: down, code: 201, runs: 1}, // the work is done, so its reply must not be replaced
	} {
		var runs atomic.Int32
		var told []*httplock.Problem
		memory := lockertest.NewMemory()
		store := &faulty{idempotency.NewMemory(), tc.load, tc.save}
		h := httplock.MustIdempotency(lockertest.NewLocker(t, memory), store, "shop", append(tc.opts, problems(&told))...)(numbered(&runs))
		w := send(t.Context(), h, "POST", "/", "", "Idempotency-Key", "k")
		if w.Code != tc.code || !strings.Contains(w.Body.String(), tc.reply) || runs.Load() != tc.runs || memory.Len() != 0 {
			t.Errorf("%s: %d %s, %d runs", name, w.Code, w.Body, runs.Load())
		}
		if len(told) != 1 || told[0].Code != httplock.CodeAnswers || !told[0].Failure() || !errors.Is(told[0], down) ||
			strings.Contains(told[0].Error()+told[0].Title, "lock server") {
			t.Errorf("%s: the log has %v", name, told)
		}
	}
}

func TestARequestThatWasOvertakenSavesNothingAndIsNoSuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := lockertest.NewMemory()
		store := idempotency.NewMemory()
		l := lockertest.NewLocker(t, memory)
		h := httplock.MustIdempotency(l, store, "shop")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			lease, _ := httplock.FromContext(r)
			memory.Steal(lease.Key())
			<-r.Context().Done()
			_, _ = io.WriteString(w, "paid")
		}))
		w := send(t.Context(), h, "POST", "/", "", "Idempotency-Key", "k")
		rec, err := store.Load(t.Context(), "idempotency:shop:k")
		if err != nil || w.Code != 503 || !strings.Contains(w.Body.String(), `"code":"lock-lost"`) || !rec.Open {
			t.Errorf("%d %s, %+v, %v; want the Record in progress", w.Code, w.Body, rec, err)
		}
	})
}

func TestNobodyHoldsTheLockWhileASlowBodyComesIn(t *testing.T) {
	memory := lockertest.NewMemory()
	var runs atomic.Int32
	h := httplock.MustIdempotency(lockertest.NewLocker(t, memory), idempotency.NewMemory(), "shop", httplock.WithMaxBody(20))(numbered(&runs))
	body := readerFunc(func(p []byte) (int, error) {
		if memory.Len() != 0 || memory.Calls(locker.OpAcquire) != 0 {
			t.Error("the lock was asked for before the body was there")
		}
		return copy(p, "a slow body"), io.EOF
	})
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/", body)
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != 201 || w.Body.String() != "run 1 of a slow body" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := send(t.Context(), h, "POST", "/", strings.Repeat("x", 21), "Idempotency-Key", "k"); w.Code != 413 || !strings.Contains(w.Body.String(), `"code":"body-too-large"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestTheSameRequestFromManyClientsRunsOnceOnRedis(t *testing.T) {
	server := redistest.Shared(t)
	var runs atomic.Int32
	var services []*httptest.Server
	scope := httplock.Key(fmt.Sprintf("many-%d", time.Now().UnixNano()))
	for range 2 {
		client := server.Client(t)
		l, err := locker.New(client, locker.WithPrefix(t.Name()+":"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close(context.Background()) }()
		h := httplock.MustIdempotency(l, idempotency.NewRedis(client), scope, httplock.WithWait(time.Minute))(numbered(&runs))
		s := httptest.NewServer(h)
		defer s.Close()
		services = append(services, s)
	}
	var replays atomic.Int32
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			r, err := http.NewRequestWithContext(t.Context(), "POST", services[i%2].URL, strings.NewReader("two books"))
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("Idempotency-Key", "k1")
			res, err := services[i%2].Client().Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = res.Body.Close() }()
			body, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != 201 || string(body) != "run 1 of two books" {
				t.Errorf("%d %s, %v", res.StatusCode, body, err)
			}
			if res.Header.Get("Idempotency-Replayed") == "true" {
				replays.Add(1)
			}
		})
	}
	wg.Wait()
	if runs.Load() != 1 || replays.Load() != 49 {
		t.Errorf("%d runs, %d replays", runs.Load(), replays.Load())
	}
}

func TestAStoreServesKeysOfItsOwn(t *testing.T) {
	var runs atomic.Int32
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	h := httplock.MustNew(l, "payment:{body.request}", httplock.WithStore(idempotency.NewMemory()), httplock.WithLifetime(time.Hour))(numbered(&runs))
	for range 2 {
		if w := send(t.Context(), h, "POST", "/", `{"request": 7}`); w.Body.String() != `run 1 of {"request": 7}` {
			t.Errorf("%s", w.Body)
		}
	}
}

// many is a Locker that uses one lock for many keys, as locker.NewStriped does.
type many struct{ locker.Locker }

func (m many) Acquire(ctx context.Context, rule locker.Rule) (*locker.Lease, error) {
	rule.Key = "stripe 1 of 1"
	return m.Locker.Acquire(ctx, rule)
}

func TestResponsesAreToldApartWhereLocksAreShared(t *testing.T) {
	var runs atomic.Int32
	l := many{lockertest.NewLocker(t, lockertest.NewMemory())}
	h := httplock.MustIdempotency(l, idempotency.NewMemory(), "shop")(numbered(&runs))
	for i, key := range []string{"k1", "k2"} {
		if w := send(t.Context(), h, "POST", "/", "x", "Idempotency-Key", key); w.Body.String() != fmt.Sprintf("run %d of x", i+1) {
			t.Errorf("%s: %d %s", key, w.Code, w.Body)
		}
	}
}

// When a client has disconnected, a failure of its request must not be stored.
func TestTheAnswerToAClientThatLeftIsThatOfFinishedWork(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	ctx, leave := context.WithCancel(t.Context())
	runs := 0
	h := httplock.MustIdempotency(l, idempotency.NewMemory(), "shop")(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs++
		leave()
		if r.Context().Err() != nil {
			http.Error(w, "the client has left", http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	send(ctx, h, "POST", "/", "", "Idempotency-Key", "k")
	if w := send(t.Context(), h, "POST", "/", "", "Idempotency-Key", "k"); w.Code != 201 || runs != 1 {
		t.Errorf("%d %s, %d runs", w.Code, w.Body, runs)
	}
}

func TestAHandlerThatHasWrittenNothingIsNotRemembered(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	runs := 0
	h := httplock.MustIdempotency(l, idempotency.NewMemory(), "shop")(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { runs++ }))
	for range 2 {
		send(t.Context(), h, "POST", "/", "", "Idempotency-Key", "k")
	}
	if runs != 2 {
		t.Errorf("%d runs", runs)
	}
}
