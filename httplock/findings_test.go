package httplock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// The text of a form can also be valid JSON. If keys were read from forms, such a form could lock
// one article and sell another article.
func TestAKeyReadsJSONTypesOnly(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	h := httplock.MustNew(l, "stock:{body.sku}")(paid)
	for contentType, want := range map[string]int{
		"": 200, "application/json": 200, "application/json; charset=utf-8": 200, "application/vnd.shop+json": 200,
		"application/x-www-form-urlencoded": 415, "text/plain": 415, "multipart/form-data; boundary=x": 415, ";": 415,
	} {
		w := send(t.Context(), h, "POST", "/", `{"sku":"decoy","x":"&sku=GPU&"}`, "Content-Type", contentType)
		if w.Code != want || want == 415 && !strings.Contains(w.Body.String(), httplock.CodeNotJSON) {
			t.Errorf("%q: %d %s", contentType, w.Code, w.Body)
		}
	}
	wide := httplock.MustNew(l, "stock:{body.sku}", httplock.WithBodyTypes("text/plain"))(paid)
	if w := send(t.Context(), wide, "POST", "/", `{"sku":"pen"}`, "Content-Type", "text/plain"); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestABasketLocksEachOfItsArticles(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	var keys []string
	h := httplock.MustNew(l, "stock:{body.items.*.sku}", httplock.WithKeys("till"), httplock.WithWait(locker.NoWait))(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, lease := range locker.LeasesFromContext(r.Context()) {
				keys = append(keys, lease.Key())
			}
			w.WriteHeader(http.StatusNoContent)
		}))
	const basket = `{"items":[{"sku":"pen"},{"sku":"book"},{"sku":"pen"},{"sku":7}]}`
	if w := send(t.Context(), h, "POST", "/", basket); w.Code != 204 || strings.Join(keys, " ") != "till stock:pen stock:book stock:7" {
		t.Errorf("%d %s, %q", w.Code, w.Body, keys)
	}
	store.Occupy("stock:book", 0)
	if w := send(t.Context(), h, "POST", "/", basket); w.Code != 409 || store.Len() != 1 {
		t.Errorf("%d %s, %d locks; want all or none", w.Code, w.Body, store.Len())
	}
	for _, wrong := range []string{`{"items":[{"sku":"pen"},{"count":2}]}`, `{"items":[]}`, `{"items":{"sku":"pen"}}`, `{}`} {
		if w := send(t.Context(), h, "POST", "/", wrong); w.Code != 400 {
			t.Errorf("%s: %d %s", wrong, w.Code, w.Body)
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

// While the lock server is down, each request that asks it has to wait. So only a few requests may
// ask the server. If all requests asked the server, all of them would wait.
func TestAnOutageIsRememberedWithFailOpen(t *testing.T) {
	asked := 0
	l := lockerFunc(func(r locker.Rule) error {
		asked++
		return &locker.Error{Op: locker.OpAcquire, Key: r.Key, Err: locker.ErrUnavailable}
	})
	h := httplock.MustNew(l, "a", httplock.WithFailOpen())(paid)
	for range 20 {
		if w := send(t.Context(), h, "POST", "/", ""); w.Code != 200 {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
	if asked != 1 {
		t.Errorf("the server was asked %d times", asked)
	}
}

func TestAWaitIsShownToTheClient(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	h := httplock.MustNew(l, "a")(paid)
	if w := send(t.Context(), h, "POST", "/", ""); strings.Contains(w.Header().Get("Server-Timing"), "lock;dur=1") {
		t.Errorf("%v", w.Header())
	}
	store.Occupy("a", 0)
	time.AfterFunc(50*time.Millisecond, func() { store.Free("a") })
	if w := send(t.Context(), h, "POST", "/", ""); w.Code != 200 || !strings.HasPrefix(w.Header().Get("Server-Timing"), "lock;dur=") {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

// The route and its parameters can be seen in the access log, even outside of a guarded mux.
func TestTheRouteIsSeenOutside(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	mux := http.NewServeMux()
	mux.Handle("POST /orders/{id}", paid)
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/orders/42", http.NoBody)
	httplock.MustNew(l, "all")(mux).ServeHTTP(httptest.NewRecorder(), r)
	if r.Pattern != "POST /orders/{id}" || r.PathValue("id") != "42" {
		t.Errorf("%q, %q", r.Pattern, r.PathValue("id"))
	}
}

// Any client can send a large body. Finding one member in it must cost no more than reading the
// body.
func TestALargeBodyCostsLittleBeforeTheLock(t *testing.T) {
	body := `{"items":[` + strings.Repeat(`{"n":1},`, 1<<17) + `{"n":2}]}`
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	h := httplock.MustNew(l, "item:{body.items.131072.n}", httplock.WithMaxBody(2<<20))(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if lease, ok := httplock.FromContext(r); !ok || lease.Key() != "item:2" {
			t.Error("the last element is not in the key")
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	if n := testing.AllocsPerRun(3, func() { send(t.Context(), h, "POST", "/", body) }); n > 1000 {
		t.Errorf("%.0f allocations for a list of %d elements", n, 1<<17+1)
	}
}
