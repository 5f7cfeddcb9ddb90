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
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A client disconnects while its request waits. If the request has no body, or if its body was
// read, net/http notices this, and the wait ends.
func TestAClientThatGoesAwayWhileItWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		key    httplock.Key
		method string
		body   string
	}{
		"without a body":                {"order:{param.id}", http.MethodGet, ""},
		"with a body, read for the key": {"order:{param.id}:{body.sku}", http.MethodPost, `{"sku": "a"}`},
		"with a body that no key needs": {"order:{param.id}", http.MethodPost, `{"sku": "a"}`},
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
				ended <- seen{errors: c.Errors.Errors(), outcome: fmt.Sprint(p.Code, " ", c.Writer.Status(), " ", max(c.Writer.Size(), 0))}
			})
			e.Handle(tc.method, "/orders/:id", ginlock.MustNew(l, tc.key, httplock.WithWait(time.Hour)), ok)
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
			if see := <-ended; see.outcome != "client-gone 499 0" || len(see.errors) > 0 {
				t.Errorf("%+v", see)
			}
			if got := rec.Records(locker.OpAcquire); len(got) != 1 || got[0].Outcome.Result != locker.ResultCanceled {
				t.Errorf("the acquire ended as %+v", got)
			}
		})
	}
}

func TestRedisThatStandsStillInMidRequest(t *testing.T) {
	redisServer := redistest.Start(t)
	l, err := locker.New(redisServer.Client(t, func(o *redis.Options) { o.ReadTimeout = 500 * time.Millisecond }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
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
