package ginlock_test

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
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// onRedis returns a Locker for one process of a service.
func onRedis(t *testing.T, client *redis.Client, opts ...locker.SingleOption) locker.Locker {
	t.Helper()
	l, err := locker.New(client, append(opts, locker.WithPrefix(t.Name()+":"))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

func TestTwoHundredClientsRunOneAtATime(t *testing.T) {
	for name, lockers := range map[string]func(t *testing.T) []locker.Locker{
		"in memory": func(t *testing.T) []locker.Locker {
			return []locker.Locker{lockertest.NewLocker(t, lockertest.NewMemory())}
		},
		"on Redis, in three services": func(t *testing.T) []locker.Locker {
			server := redistest.Shared(t)
			return []locker.Locker{onRedis(t, server.Client(t)), onRedis(t, server.Client(t)), onRedis(t, server.Client(t))}
		},
	} {
		t.Run(name, func(t *testing.T) {
			const clients = 200
			var inside, most atomic.Int32
			var last uint64
			sold := 0 // only the lock guards this counter, so the race detector reports two holders at once
			var servers []*httptest.Server
			for _, l := range lockers(t) {
				server := httptest.NewServer(engine(nil, ginlock.MustNew(l, "order:{param.id}", httplock.WithWait(time.Minute)), func(c *gin.Context) {
					most.Store(max(most.Load(), inside.Add(1)))
					lease, _ := ginlock.FromContext(c)
					if lease.Fence() <= last {
						t.Errorf("fence %d after %d", lease.Fence(), last)
					}
					last = lease.Fence()
					sold++
					inside.Add(-1)
					ok(c)
				}))
				defer server.Close()
				servers = append(servers, server)
			}
			var wg sync.WaitGroup
			for i := range clients {
				wg.Go(func() {
					if code, body := status(t, servers[i%len(servers)], "/orders/42"); code != http.StatusOK {
						t.Errorf("%d %s", code, body)
					}
				})
			}
			wg.Wait()
			if sold != clients || most.Load() != 1 {
				t.Errorf("sold %d of %d, with up to %d requests inside", sold, clients, most.Load())
			}
		})
	}
}

// A client disconnects while its request waits. If the request has no body, or if its body was
// read, net/http notices this, and the wait ends. Otherwise WithWait must end the wait.
func TestAClientThatGoesAwayWhileItWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		key     httplock.Key
		method  string
		body    string
		wait    time.Duration
		outcome string
		result  locker.Result
	}{
		"without a body":                {"order:{param.id}", http.MethodGet, "", time.Hour, "client-gone 499 0", locker.ResultCanceled},
		"with a body, read for the key": {"order:{param.id}:{body.sku}", http.MethodPost, `{"sku": "a"}`, time.Hour, "client-gone 499 0", locker.ResultCanceled},
		"with a body that no key needs": {"order:{param.id}", http.MethodPost, `{"sku": "a"}`, time.Hour, "client-gone 499 0", locker.ResultCanceled},
	} {
		t.Run(name, func(t *testing.T) {
			store := lockertest.NewMemory()
			store.Occupy("order:42", 0)
			store.Occupy("order:42:a", 0)
			var rec lockertest.Recorder
			l := lockertest.NewLocker(t, store, locker.WithObserver(&rec))
			ended := make(chan seen, 1)
			e := gin.New()
			e.Use(func(c *gin.Context) {
				c.Next()
				p, _ := ginlock.Outcome(c)
				outcome := fmt.Sprint(p.Code, " ", c.Writer.Status())
				if p.Code == httplock.CodeClientGone {
					outcome += fmt.Sprint(" ", max(c.Writer.Size(), 0))
				}
				ended <- seen{errors: c.Errors.Errors(), outcome: outcome}
			})
			e.Handle(tc.method, "/orders/:id", ginlock.MustNew(l, tc.key, httplock.WithWait(tc.wait)), ok)
			server := httptest.NewServer(e)
			defer server.Close()

			ctx, leave := context.WithCancel(t.Context())
			var body io.Reader = http.NoBody
			if tc.body != "" {
				body = strings.NewReader(tc.body)
			}
			req, err := http.NewRequestWithContext(ctx, tc.method, server.URL+"/orders/42", body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			left := make(chan error)
			go func() {
				res, err := server.Client().Do(req)
				if err == nil {
					_ = res.Body.Close()
				}
				left <- err
			}()
			rec.Await(t, func(r *lockertest.Recorder) bool { return r.Begun(locker.OpAcquire) == 1 })
			leave()
			if err := <-left; !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if see := <-ended; see.outcome != tc.outcome || len(see.errors) > 0 {
				t.Errorf("%+v", see)
			}
			if got := rec.Records(locker.OpAcquire); len(got) != 1 || got[0].Outcome.Result != tc.result {
				t.Errorf("the acquire ended as %+v", got)
			}
		})
	}
}

func TestRedisThatStandsStillInMidRequest(t *testing.T) {
	redisServer := redistest.Start(t)
	l := onRedis(t, redisServer.Client(t, func(o *redis.Options) { o.ReadTimeout = 500 * time.Millisecond }))
	entered := make(chan struct{})
	cause := make(chan error, 1)
	key := httplock.Key("order:{param.id}")
	e := gin.New()
	e.POST("/closed/:id", ginlock.MustNew(l, key, httplock.WithTTL(time.Second)), func(c *gin.Context) {
		if c.Query("hold") != "" {
			close(entered)
			<-c.Request.Context().Done()
			cause <- context.Cause(c.Request.Context())
			return
		}
		ok(c)
	})
	e.POST("/open/:id", ginlock.MustNew(l, key, httplock.WithFailOpen()), func(c *gin.Context) {
		if _, held := ginlock.FromContext(c); held {
			t.Error("there is a lease of a server that stands still")
		}
		c.String(http.StatusOK, "without a lock")
	})
	server := httptest.NewServer(e)
	defer server.Close()

	held := make(chan string, 1)
	go func() {
		code, body := status(t, server, "/closed/42?hold=1")
		held <- fmt.Sprint(code, " ", body)
	}()
	<-entered
	redisServer.Pause()
	if why := <-cause; !errors.Is(why, locker.ErrLost) {
		t.Errorf("the holder's context ended with %v", why)
	}
	if reply := <-held; !strings.HasPrefix(reply, "503 ") || !strings.Contains(reply, `"code":"lock-lost"`) {
		t.Errorf("the holder: %s", reply)
	}
	if code, body := status(t, server, "/closed/43"); code != http.StatusServiceUnavailable || !strings.Contains(body, `"code":"lock-unavailable"`) {
		t.Errorf("another order: %d %s", code, body)
	}
	if code, body := status(t, server, "/open/44"); code != http.StatusOK || body != "without a lock" {
		t.Errorf("fail open: %d %s", code, body)
	}
	redisServer.Resume()
	for { // until all connections in the client's pool are new
		code, body := status(t, server, "/closed/42")
		if code == http.StatusOK {
			break
		}
		if code != http.StatusServiceUnavailable && code != http.StatusConflict || t.Failed() {
			t.Fatalf("afterwards: %d %s", code, body)
		}
	}
}
