package ginlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// status sends a POST to a real server. It returns the status and the body of the reply.
func status(t *testing.T, server *httptest.Server, path string) (int, string) {
	t.Helper()
	res, err := server.Client().Post(server.URL+path, "", http.NoBody)
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return res.StatusCode, string(body)
}

func TestOneRequestRunsAndTheOtherIsTurnedAway(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	entered, finish := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(engine(nil, ginlock.MustNew(l, "order:{param.id}", httplock.WithWait(locker.NoWait)), func(c *gin.Context) {
		if c.Query("slow") != "" {
			close(entered)
			<-finish
		}
		ok(c)
	}))
	defer server.Close()

	first := make(chan int)
	go func() {
		code, _ := status(t, server, "/orders/42?slow=1")
		first <- code
	}()
	<-entered
	if code, body := status(t, server, "/orders/42"); code != http.StatusConflict || !strings.Contains(body, `"code":"lock-busy"`) {
		t.Errorf("the second request: %d %s", code, body)
	}
	if code, body := status(t, server, "/orders/43"); code != http.StatusOK {
		t.Errorf("another order: %d %s", code, body)
	}
	close(finish)
	if code := <-first; code != http.StatusOK {
		t.Errorf("the first request: %d", code)
	}
	if code, body := status(t, server, "/orders/42"); code != http.StatusOK {
		t.Errorf("after the first request: %d %s", code, body)
	}
}

func TestAWaitThatIsOverIsAnsweredAndHasAnEndByDefault(t *testing.T) {
	for name, tc := range map[string]struct {
		opts []httplock.Option
		want time.Duration
	}{
		"default":            {want: 5 * time.Second},
		"WithWait":           {opts: []httplock.Option{httplock.WithWait(time.Second)}, want: time.Second},
		"NoWait":             {opts: []httplock.Option{httplock.WithWait(locker.NoWait)}},
		"a Rule of none":     {opts: []httplock.Option{ginlock.WithRule(func(_ *gin.Context, r *locker.Rule) { r.Wait = 0 })}, want: 5 * time.Second},
		"a Rule of a minute": {opts: []httplock.Option{ginlock.WithRule(func(_ *gin.Context, r *locker.Rule) { r.Wait = time.Minute })}, want: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := lockertest.NewMemory()
				store.Occupy("order:42", 0)
				var see seen
				e := engine(&see, ginlock.MustNew(lockertest.NewLocker(t, store), "order:{param.id}", tc.opts...), ok)
				began := time.Now()
				w := post(t.Context(), e, "/orders/42")
				if waited := time.Since(began); waited != tc.want {
					t.Errorf("waited %v, want %v", waited, tc.want)
				}
				if w.Code != http.StatusConflict || see.outcome != httplock.CodeBusy || len(see.errors) > 0 {
					t.Errorf("%d %s, %+v", w.Code, w.Body, see)
				}
			})
		})
	}
}

func TestAClientThatGoesAwayWhileItIsServedLeavesNoLock(t *testing.T) {
	store := lockertest.NewMemory()
	var rec lockertest.Recorder
	l := lockertest.NewLocker(t, store, locker.WithObserver(&rec))
	entered := make(chan struct{})
	e := gin.New()
	e.GET("/orders/:id", ginlock.MustNew(l, "order:{param.id}"), func(c *gin.Context) {
		close(entered)
		<-c.Request.Context().Done()
	})
	server := httptest.NewServer(e)
	defer server.Close()
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/orders/42", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-entered
		leave()
	}()
	if res, err := server.Client().Do(req); err == nil {
		_ = res.Body.Close()
		t.Fatal("the client did not leave")
	}
	rec.Await(t, func(r *lockertest.Recorder) bool { return len(r.Records(locker.OpRelease)) == 1 })
	if got := rec.Records(locker.OpRelease)[0].Outcome; got.Result != locker.ResultReleased || store.Len() != 0 {
		t.Errorf("%+v, %d locks are left", got, store.Len())
	}
}

func TestALostLockEndsTheRequestsContextAndIsNeverASuccess(t *testing.T) {
	for name, tc := range map[string]struct {
		reply func(c *gin.Context) // writes the reply of the handler
		code  int
		body  string
	}{
		"nothing written": {func(*gin.Context) {}, http.StatusServiceUnavailable, `"code":"lock-lost"`},
		"a status and headers set": {func(c *gin.Context) {
			c.Header("ETag", `"7"`)
			c.Header("Content-Length", "1")
			c.Header("Cache-Control", "max-age=60")
			c.Status(http.StatusCreated)
		}, http.StatusServiceUnavailable, `"code":"lock-lost"`},
		"written already": {ok, http.StatusOK, "paid"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := lockertest.NewMemory()
				var see seen
				var cause error
				e := engine(&see, ginlock.MustNew(lockertest.NewLocker(t, store), "order:{param.id}"), func(c *gin.Context) {
					store.Steal("order:42")
					<-c.Request.Context().Done()
					cause = context.Cause(c.Request.Context())
					tc.reply(c)
				})
				w := post(t.Context(), e, "/orders/42")
				if !errors.Is(cause, locker.ErrLost) {
					t.Errorf("the context ended with %v", cause)
				}
				if w.Code != tc.code || !strings.Contains(w.Body.String(), tc.body) {
					t.Errorf("%d %s", w.Code, w.Body)
				}
				if h := w.Result().Header; tc.code != http.StatusOK && (h.Get("ETag") != "" || h.Get("Content-Length") == "1" || h.Get("Cache-Control") != "no-store") {
					t.Errorf("headers of the reply that was not sent are left: %v", h)
				}
				if see.outcome != httplock.CodeLost || len(see.errors) != 1 || strings.Contains(see.errors[0], "42") {
					t.Errorf("a logger saw %+v", see)
				}
			})
		})
	}
}

type valueKey struct{}

// traced does what otelgin does: it gives the handlers a context that the outer middlewares do not
// see.
func traced(value string) gin.HandlerFunc {
	return func(c *gin.Context) {
		saved := c.Request.Context()
		defer func() { c.Request = c.Request.WithContext(saved) }()
		c.Request = c.Request.WithContext(context.WithValue(saved, valueKey{}, value))
		c.Next()
	}
}

func TestContextsNestWithThoseOfOtherMiddlewares(t *testing.T) {
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	e := gin.New()
	lock := func(k httplock.Key) gin.HandlerFunc { return ginlock.MustNew(l, k) }
	free := func(when string, want any) gin.HandlerFunc {
		return func(c *gin.Context) {
			c.Next()
			if _, held := ginlock.FromContext(c); held || c.Request.Context().Value(valueKey{}) != want || c.Request.Context().Err() != nil {
				t.Errorf("%s: lease %v, value %v, %v", when, held, c.Request.Context().Value(valueKey{}), c.Request.Context().Err())
			}
		}
	}
	e.POST("/orders/:id", free("outside", nil), traced("span"), free("before the lock", "span"), lock("order:{param.id}"), func(c *gin.Context) {
		c.Next()
		if lease, held := ginlock.FromContext(c); !held || lease.Key() != "order:42" {
			t.Errorf("between the locks: %v", held)
		}
	}, lock("invoice:{param.id}"), func(c *gin.Context) {
		lease, held := ginlock.FromContext(c)
		if !held || lease.Key() != "invoice:42" || lease.Fence() == 0 {
			t.Errorf("inside: %v", held)
		}
		ctx := c.Request.Context()
		if ctx.Value(valueKey{}) != "span" || len(locker.LeasesFromContext(ctx)) != 2 {
			t.Errorf("inside: value %v, %d leases", ctx.Value(valueKey{}), len(locker.LeasesFromContext(ctx)))
		}
		ok(c)
	})
	if w := post(t.Context(), e, "/orders/42"); w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if _, held := ginlock.FromContext(&gin.Context{}); held {
		t.Error("a context without a request has a lease")
	}
}

func TestAFilterLeavesRequestsAlone(t *testing.T) {
	store := lockertest.NewMemory()
	store.Occupy("order:42", 0)
	changes := ginlock.WithFilter(func(c *gin.Context) bool { return c.Query("dry") == "" })
	urgent := ginlock.WithFilter(func(c *gin.Context) bool { return c.Query("force") == "" })
	e := engine(nil, ginlock.MustNew(lockertest.NewLocker(t, store), "order:{param.id}", changes, urgent, httplock.WithWait(locker.NoWait)), ok)
	for target, want := range map[string]int{
		"/orders/42": http.StatusConflict, "/orders/42?dry=1": http.StatusOK, "/orders/42?force=1": http.StatusOK,
	} {
		if w := post(t.Context(), e, target); w.Code != want {
			t.Errorf("%s: %d, want %d", target, w.Code, want)
		}
	}
}

func TestASuccessThatNobodyRemembersKeepsItsReplyAndIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockertest.NewMemory()
		var see seen
		once := ginlock.WithRule(func(_ *gin.Context, r *locker.Rule) { r.OnceFor = time.Hour })
		e := engine(&see, ginlock.MustNew(lockertest.NewLocker(t, store), "order:{param.id}", once), func(c *gin.Context) {
			store.Fail(locker.OpRelease, errors.New("EOF"))
			time.AfterFunc(10*time.Second, func() { store.Fail(locker.OpRelease, nil) })
			c.Status(http.StatusNoContent)
		})
		if w := post(t.Context(), e, "/orders/42"); w.Code != http.StatusNoContent || len(see.errors) != 1 || see.outcome != httplock.CodeUnavailable {
			t.Errorf("%d %s, %+v", w.Code, w.Body, see)
		}
	})
}

func TestTheRuleIsMadeOfTheOptions(t *testing.T) {
	for name, tc := range map[string]struct {
		key  httplock.Key
		opts []httplock.Option
		want locker.Rule
	}{
		"defaults":               {key: "order:{param.id}", want: locker.Rule{Key: "order:42", Name: "order", Wait: 5 * time.Second}},
		"a name from text alone": {key: "{param.id}:order", want: locker.Rule{Key: "42:order", Name: "lock", Wait: 5 * time.Second}},
		"no part":                {key: "nightly", want: locker.Rule{Key: "nightly", Name: "lock", Wait: 5 * time.Second}},
		"options": {
			key:  "order:{param.id}",
			opts: []httplock.Option{httplock.WithName("pay"), httplock.WithTTL(time.Minute), httplock.WithWait(locker.NoWait)},
			want: locker.Rule{Key: "order:42", Name: "pay", TTL: time.Minute, Wait: locker.NoWait},
		},
		"WithRule": {
			key: "order:{param.id}",
			opts: []httplock.Option{
				ginlock.WithRule(func(c *gin.Context, r *locker.Rule) { *r = locker.Rule{Key: r.Key + ":" + c.Query("v")} }),
				ginlock.WithRule(func(_ *gin.Context, r *locker.Rule) { r.Mode = locker.Shared }),
			},
			want: locker.Rule{Key: "order:42:7", Name: "order", Mode: locker.Shared, Wait: 5 * time.Second},
		},
	} {
		var got locker.Rule
		l := lockerFunc(func(r locker.Rule) error {
			got = r
			return &locker.Error{Op: locker.OpAcquire, Key: r.Key, Err: locker.ErrBusy}
		})
		post(t.Context(), engine(nil, ginlock.MustNew(l, tc.key, tc.opts...), ok), "/orders/42?v=7")
		if got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestMistakesAreFoundWhenTheProgramStarts(t *testing.T) {
	l := lockerFunc(func(locker.Rule) error { return nil })
	for says, build := range map[string]func(){
		"the Locker is nil; make one":          func() { ginlock.MustNew(nil, "a") },
		"WithWait(0): a wait must have an end": func() { ginlock.MustNew(l, "a", httplock.WithWait(0)) },
		"WithTTL(1µs): such a short lease":     func() { ginlock.MustNew(l, "a", httplock.WithTTL(time.Microsecond)) },
		"the key \"\" is empty; name what":     func() { ginlock.MustNew(l, "") },
		"has the part {id}; write {body.id}, {claim.id}, {cookie.id}, {header.id}, {idempotency-key}, {ip}, {param.id}, {query.id} or {value.id}": func() { ginlock.MustNew(l, "order:{id}") },
		"the claims of a request; give it WithClaims": func() { ginlock.MustNew(l, "order:{claim.sub}") },
		"the Store is nil":                            func() { ginlock.MustIdempotency(l, nil, "shop") },
		"the scope is empty":                          func() { ginlock.MustIdempotency(l, idempotency.NewMemory(), "") },
	} {
		if got := panics(build); !strings.HasPrefix(got, "ginlock: ") || !strings.Contains(got, says) {
			t.Errorf("%q, want %q", got, says)
		}
	}
}

// panics calls f, and returns the text with which f has panicked.
func panics(f func()) (text string) {
	defer func() { text = fmt.Sprint(recover()) }()
	f()
	return ""
}
