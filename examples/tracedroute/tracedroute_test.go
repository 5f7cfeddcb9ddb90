package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

// When a service stops, it answers at once the requests that wait for a lock. The reply tells the
// client what to do.
func TestAStopAnswersTheRequestsThatWait(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	other, err := locker.New(client) // the Locker of another service, which holds the lock
	if err != nil {
		t.Fatal(err)
	}
	lease, err := other.Acquire(t.Context(), locker.Rule{Key: "order:42"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lease.Release(context.Background()) })
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stopping, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve(stopping, client, listener) }()
	reply := make(chan string, 1)
	go func() {
		res, err := http.Post("http://"+listener.Addr().String()+"/orders/42/pay", "", nil)
		if err != nil {
			reply <- err.Error()
			return
		}
		defer func() { _ = res.Body.Close() }()
		body, _ := io.ReadAll(res.Body)
		reply <- res.Status + " " + string(body)
	}()
	for waiting := false; !waiting; <-time.After(time.Millisecond) {
		info, err := other.Inspect(t.Context(), "order:42")
		if err != nil {
			t.Fatal(err)
		}
		waiting = info.Waiters > 0
	}
	stop()
	if got := <-reply; !strings.HasPrefix(got, "503") || !strings.Contains(got, "lock-closed") {
		t.Errorf("the waiting request got %s", got)
	}
	if err := <-served; err != nil {
		t.Errorf("the service ended with %v", err)
	}
}
