package ginlock_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// Readers of an article run at the same time, in two services. A writer runs alone.
func TestReadersRunTogetherAndAWriterAlone(t *testing.T) {
	const readers = 20
	server := redistest.Shared(t)
	var reading, most, writing atomic.Int32
	together, release := make(chan struct{}), make(chan struct{})
	version := 0
	var services []*httptest.Server
	for range 2 {
		l, err := locker.NewReadWrite(server.Client(t), locker.WithPrefix(t.Name()+":"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		e := gin.New()
		guard, err := ginlock.FromRules(l, httplock.Rules{
			"GET /articles/:slug": {Key: "article:{param.slug}"}, "PUT /articles/:slug": {Key: "article:{param.slug}"},
		}, httplock.WithModeByMethod(), httplock.WithWait(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		e.Use(guard.Handler())
		e.GET("/articles/:slug", func(c *gin.Context) {
			n := reading.Add(1)
			defer reading.Add(-1)
			most.Store(max(most.Load(), n))
			if writing.Load() != 0 {
				t.Error("a reader beside a writer")
			}
			if c.Query("stay") != "" {
				if n == readers {
					close(together)
				}
				<-release
			}
			c.String(http.StatusOK, "%d", version)
		})
		e.PUT("/articles/:slug", func(c *gin.Context) {
			if writing.Add(1) != 1 || reading.Load() != 0 {
				t.Error("a writer is not alone")
			}
			version++
			writing.Add(-1)
			c.Status(http.StatusNoContent)
		})
		if err := guard.Validate(e.Routes()); err != nil {
			t.Fatal(err)
		}
		s := httptest.NewServer(e)
		defer s.Close()
		services = append(services, s)
	}
	send := func(i int, method, query string, want int) {
		s := services[i%2]
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL+"/articles/go"+query, http.NoBody)
		if err != nil {
			t.Error(err)
			return
		}
		res, err := s.Client().Do(r)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = res.Body.Close() }()
		if res.StatusCode != want {
			t.Errorf("%s: %d", method, res.StatusCode)
		}
	}
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() { send(i, http.MethodGet, "?stay=1", http.StatusOK) })
	}
	<-together // now all readers are inside at the same time
	for i := range 10 {
		wg.Go(func() { send(i, http.MethodPut, "", http.StatusNoContent) })
		wg.Go(func() { send(i, http.MethodGet, "", http.StatusOK) })
	}
	close(release)
	wg.Wait()
	if version != 10 || most.Load() < readers {
		t.Errorf("version %d, at most %d readers", version, most.Load())
	}
}
