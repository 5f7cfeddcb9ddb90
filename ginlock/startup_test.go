package ginlock_test

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

var payRule = httplock.Rules{"POST /orders/:id/pay": {Key: "order:{param.id}"}}

func fromRules(t *testing.T, l locker.Locker, rules httplock.Rules, opts ...httplock.Option) *ginlock.Guard {
	t.Helper()
	guard, err := ginlock.FromRules(l, rules, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return guard
}

// A lock that guards nothing is worse than no lock. With each of these mistakes in the setup,
// handlers used to run without a lock.
func TestAGuardThatNoRequestPassesFailsAtStartUp(t *testing.T) {
	busy := lockerFunc(func(r locker.Rule) error { return &locker.Error{Op: locker.OpAcquire, Key: r.Key, Err: locker.ErrBusy} })
	t.Run("the guard was never put in front of the routes", func(t *testing.T) {
		e := gin.New()
		e.POST("/orders/:id/pay", ok)
		if err := fromRules(t, busy, payRule).Validate(e.Routes()); err == nil || !strings.Contains(err.Error(), "no request passes the guard; call guard.Mount(engine)") {
			t.Error(err)
		}
	})
	t.Run("the route was registered before the guard", func(t *testing.T) {
		e := gin.New()
		e.POST("/orders/:id/pay", ok)
		validate := fromRules(t, busy, payRule).Mount(e)
		if err := validate(); err == nil || !strings.Contains(err.Error(), `rule "POST /orders/:id/pay": the route was registered before Mount`) {
			t.Error(err)
		}
	})
	t.Run("Mount comes first", func(t *testing.T) {
		e := gin.New()
		validate := fromRules(t, busy, payRule).Mount(e)
		e.POST("/orders/:id/pay", ok)
		if err := validate(); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders/42/pay", http.NoBody))
		if w.Code != http.StatusConflict {
			t.Errorf("%d %s; want the busy lock", w.Code, w.Body)
		}
	})
	t.Run("there are no rules", func(t *testing.T) {
		if _, err := ginlock.FromRules(busy, httplock.Rules{}); err == nil || !strings.Contains(err.Error(), "there are no rules") {
			t.Error(err)
		}
	})
}

// These rules used to be accepted at start-up, although every request then failed.
func TestARuleThatCanNeverBeGrantedFailsAtStartUp(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	single, err := locktest.NewEngine(plain{lockertest.NewMemory()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = single.Close(t.Context()) }()
	for says, tc := range map[string]struct {
		l    locker.Locker
		rule httplock.Rule
	}{
		"EndAfter 1s is shorter than KeepFor 10s":                              {l, httplock.Rule{Key: "a", KeepFor: 10 * time.Second, EndAfter: time.Second}},
		"Mode Shared needs a Locker with readers":                              {single, httplock.Rule{Key: "a", Mode: locker.Shared}},
		"Limit and Weight need a Locker of NewSemaphore":                       {single, httplock.Rule{Key: "a", Limit: 3}},
		"WithTTL(1ms): such a short lease ends before its holder learns of it": {l, httplock.Rule{Key: "a", TTL: time.Millisecond}},
		"WithWait(1ns): give at least 1ms":                                     {l, httplock.Rule{Key: "a", Wait: 1}},
		"the rule has Key and Keys":                                            {l, httplock.Rule{Key: "a", Keys: []httplock.Key{"b"}}},
		"there is no Store for the responses; give WithStore":                  {l, httplock.Rule{Idempotency: "shop"}},
		"the rule has NoLock together with a Key":                              {l, httplock.Rule{Key: "a", NoLock: true}},
	} {
		if _, err := ginlock.FromRules(tc.l, httplock.Rules{"POST /a": tc.rule}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %s", err, says)
		}
	}
}

// plain is a Store that has neither readers nor permits.
type plain struct{ store.Store }

func TestRoutesWithoutARuleAreListed(t *testing.T) {
	e := gin.New()
	guard := fromRules(t, lockerFunc(func(locker.Rule) error { return nil }), httplock.Rules{
		"POST /orders/:id/pay": {Key: "order:{param.id}"}, "POST /visits": {NoLock: true},
	})
	validate := guard.Mount(e)
	for _, path := range []string{"/orders/:id/pay", "/visits", "/orders"} {
		e.POST(path, ok)
	}
	e.GET("/orders/:id", ok)
	e.DELETE("/orders/:id", ok)
	if err := validate(); err != nil {
		t.Fatal(err)
	}
	if got, want := guard.Unguarded(e.Routes()), []string{"DELETE /orders/:id", "POST /orders"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	w := httptest.NewRecorder()
	if e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/visits", http.NoBody)); w.Code != 200 {
		t.Errorf("a route without a lock: %d %s", w.Code, w.Body)
	}
}

// The stored record is looked up before the lock is taken. So a replay needs no lock, and the
// handler finds the lease of its order, and not that of the idempotency key.
func TestARuleWithIdempotencyLooksBeforeItLocks(t *testing.T) {
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	records := idempotency.NewMemory()
	runs := 0
	e := gin.New()
	validate := fromRules(t, l, httplock.Rules{
		"POST /orders/:id": {Key: "order:{param.id}", Wait: locker.NoWait, Idempotency: "{header.X-Tenant}"},
	}, httplock.WithStore(records)).Mount(e)
	e.POST("/orders/:id", func(c *gin.Context) {
		runs++
		lease, _ := ginlock.FromContext(c)
		c.String(http.StatusCreated, "%s", lease.Key())
	})
	if err := validate(); err != nil {
		t.Fatal(err)
	}
	if w := pays(t, e, "k1", "x"); w.Code != 201 || w.Body.String() != "order:42" {
		t.Errorf("%d %s; want the lease of the order", w.Code, w.Body)
	}
	store.Occupy("order:42", 0)
	if w := pays(t, e, "k1", "x"); w.Code != 201 || w.Header().Get("Idempotency-Replayed") != "true" || runs != 1 {
		t.Errorf("a replay while the order is locked: %d %s, %d runs", w.Code, w.Body, runs)
	}
	// When the inner lock refuses a request, the refusal is not stored.
	if w := pays(t, e, "k2", "x"); w.Code != 409 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	store.Free("order:42")
	if w := pays(t, e, "k2", "x"); w.Code != 201 || runs != 2 {
		t.Errorf("after the refusal: %d %s, %d runs", w.Code, w.Body, runs)
	}
}

// If the guard is outside and Idempotency is inside, FromContext finds the guard's lease, too.
func TestFromContextFindsTheLeaseOfTheGuard(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	e := gin.New()
	e.POST("/orders/:id", ginlock.MustNew(l, "order:{param.id}"), ginlock.MustIdempotency(l, idempotency.NewMemory(), "shop"), func(c *gin.Context) {
		lease, _ := ginlock.FromContext(c)
		c.String(200, "%s", lease.Key())
	})
	if w := pays(t, e, "k", ""); w.Body.String() != "order:42" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Make returns the mistakes for which New panics.
func TestMakeReturnsTheMistakesOfANew(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	if h, err := ginlock.New(l, "order:{param.id}"); err != nil || h == nil {
		t.Error(err)
	}
	if h, err := ginlock.New(l, "order:{"); err == nil || h != nil {
		t.Errorf("%v; want an error for the key", err)
	}
	if h, err := ginlock.NewIdempotency(l, nil, "{ip}"); err == nil || h != nil {
		t.Errorf("%v; want an error for the store", err)
	}
}
