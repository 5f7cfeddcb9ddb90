package ginlock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// counter is an Observer that counts the results of requests.
type counter struct {
	locker.Observer
	mu      sync.Mutex
	results []string
}

func (c *counter) Request(_ context.Context, e locker.RequestEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results = append(c.results, e.Result)
}

func (c *counter) has(result string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.results, result)
}

func call(t *testing.T, e *gin.Engine, method, path string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	return w
}

// Engine.HandleContext gives the handlers Gin's own writer, so their response is neither held back
// nor known. The work is done all the same: it must not be done again, and no other response may
// take the place of the first.
func TestAResponseOfHandleContextIsNotReplacedByAnEmptyOne(t *testing.T) {
	runs := 0
	e := gin.New()
	var problem *httplock.Problem
	see := httplock.WithObserve(func(_ *http.Request, p *httplock.Problem) { problem = p })
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	e.POST("/v2/pay", func(c *gin.Context) { runs++; c.JSON(http.StatusCreated, gin.H{"paid": runs}) })
	e.POST("/v1/pay", ginlock.MustIdempotency(l, idempotency.NewMemory(), "shop", see), func(c *gin.Context) {
		c.Request.URL.Path = "/v2/pay"
		e.HandleContext(c)
	})
	w := call(t, e, "POST", "/v1/pay", "Idempotency-Key", "k")
	if w.Code != 201 || w.Body.String() != `{"paid":1}` || problem == nil || problem.Code != httplock.CodeMisconfigured {
		t.Errorf("the first request: %d %s, %v", w.Code, w.Body, problem)
	}
	w = call(t, e, "POST", "/v1/pay", "Idempotency-Key", "k")
	if w.Code != 409 || !strings.Contains(w.Body.String(), httplock.CodeDone) || runs != 1 {
		t.Errorf("the second request: %d %s, %d runs", w.Code, w.Body, runs)
	}
}

// A lock of the whole engine locks nothing for a request without a route, and Gin's reply stays.
func TestA404StaysA404UnderALockOfTheEngine(t *testing.T) {
	acquired := 0
	l := lockerFunc(func(locker.Rule) error { acquired++; return locker.ErrBusy })
	for _, k := range []httplock.Key{"order:{param.id}", "tenant:{header.X-Tenant}"} {
		e := gin.New()
		e.HandleMethodNotAllowed = true
		e.Use(ginlock.MustNew(l, k))
		e.POST("/orders/:id", ok)
		for path, want := range map[string]int{"/unknown": 404, "/orders/1": 405} {
			if w := call(t, e, "GET", path, "X-Tenant", "acme"); w.Code != want || strings.Contains(w.Body.String(), "lock") {
				t.Errorf("%s: %s: %d %s", k, path, w.Code, w.Body)
			}
		}
	}
	if acquired != 0 {
		t.Errorf("%d locks were asked for", acquired)
	}
}

// A handler of NoRoute that stands behind a lock of Gin does not run. One that is wrapped by httplock
// runs under its lock.
func TestAHandlerOfNoRouteDoesNotRunWithoutItsLock(t *testing.T) {
	for name, code := range map[string]int{"of Gin": 404, "of net/http": 200} {
		counted := &counter{Observer: &lockertest.Recorder{}}
		l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithObserver(counted))
		e := gin.New()
		ran, locked := false, false
		proxy := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ran = true
			_, locked = httplock.FromContext(r)
			w.WriteHeader(http.StatusOK)
		})
		const tenant = "proxy:{header.X-Tenant}"
		if name == "of Gin" {
			e.NoRoute(ginlock.MustNew(l, tenant), gin.WrapH(proxy))
		} else {
			e.NoRoute(gin.WrapH(httplock.MustNew(l, tenant)(proxy)))
		}
		w := call(t, e, "GET", "/anything", "X-Tenant", "acme")
		if w.Code != code || ran != (code == 200) || locked != ran || counted.has("unguarded") {
			t.Errorf("%s: %d %s, ran %v, locked %v, counted %v", name, w.Code, w.Body, ran, locked, counted.results)
		}
		if name == "of Gin" && !counted.has("no_route") {
			t.Errorf("the refusal was not counted: %v", counted.results)
		}
	}
}
