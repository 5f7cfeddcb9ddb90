package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// P10 measures what an adapter costs in addition to the lock.
var adapterRow = row{
	name:  "P10",
	title: "A request under a lock in memory: an adapter, and a bare Run",
	about: `The Store is in memory and requests are served without a network, in the bench's own
process. The time is that of the engine and the adapter; "more than Run" is the adapter alone.`,
	run: runAdapters,
}

// requestCost is the cost of one request.
type requestCost struct{ micros, allocs float64 }

func (s requestCost) time() float64   { return s.micros }
func (s requestCost) memory() float64 { return s.allocs }

// handlers returns three handlers for net/http, three for Gin, and two for asynq. The three do the
// same work: the first has no lock, the second uses Run, and the third is behind an adapter. Those
// for asynq are a Run and an adapter.
func handlers(l locker.Locker) (names []string, all map[string]http.Handler, err error) {
	wait := locker.NoWait
	done := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	byHand := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rule := locker.Rule{Key: "order:" + r.Header.Get("X-Order"), Name: "order", Wait: wait}
		if err := locker.Run(r.Context(), l, rule, func(context.Context) error { done(w, r); return nil }); err != nil {
			w.WriteHeader(http.StatusConflict)
		}
	})
	route := func(handlers ...gin.HandlerFunc) http.Handler {
		e := gin.New()
		e.POST("/orders/:id", handlers...)
		return e
	}
	bare := func(c *gin.Context) { c.Status(http.StatusNoContent) }
	ginByHand := func(c *gin.Context) {
		rule := locker.Rule{Key: "order:" + c.Param("id"), Name: "order", Wait: wait}
		if err := locker.Run(c.Request.Context(), l, rule, func(context.Context) error { bare(c); return nil }); err != nil {
			c.Status(http.StatusConflict)
		}
	}
	task := asynq.NewTaskWithHeaders("order:ship", nil, map[string]string{"order": "42"})
	process := func(h asynq.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if h.ProcessTask(r.Context(), task) == nil {
				w.WriteHeader(http.StatusNoContent)
			}
		})
	}
	work := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
	taskByHand := asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		rule := locker.Rule{Key: "order:" + task.Headers()["order"], Name: "order", Wait: wait}
		return locker.Run(ctx, l, rule, func(context.Context) error { return nil })
	})
	guard, err := asynqlock.New(l, asynqlock.On("order:*", asynqlock.Template("order:{header.order}")))
	if err != nil {
		return nil, nil, err
	}
	names = []string{"net/http, no lock", "net/http, Run", "httplock", "gin, no lock", "gin, Run", "ginlock", "asynq, Run", "asynqlock"}
	return names, map[string]http.Handler{
		"net/http, no lock": done,
		"net/http, Run":     byHand,
		"httplock":          httplock.MustNew(l, "order:{header.X-Order}", httplock.WithWait(wait))(done),
		"gin, no lock":      route(bare),
		"gin, Run":          route(ginByHand),
		"ginlock":           route(ginlock.MustNew(l, "order:{param.id}", httplock.WithWait(wait)), bare),
		"asynq, Run":        process(taskByHand),
		"asynqlock":         process(guard.Middleware(work)),
	}, nil
}

func runAdapters(ctx context.Context, o order) (f finding, err error) {
	gin.SetMode(gin.ReleaseMode)
	l, err := locktest.NewEngine(lockertest.NewMemory())
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, l.Close(ctx)) }()
	names, all, err := handlers(l)
	if err != nil {
		return f, err
	}
	turns := make(map[string][]requestCost)
	for range o.rounds {
		for _, name := range names {
			t, err := serve(ctx, all[name], o.turn/4)
			if err != nil {
				return f, fmt.Errorf("%s: %w", name, err)
			}
			turns[name] = append(turns[name], t)
		}
	}
	more := func(name, than string, figure func(requestCost) float64) []float64 {
		less := figuresOf(turns[than], figure)
		rest := figuresOf(turns[name], figure)
		for i := range rest {
			rest[i] -= less[i]
		}
		return rest
	}
	run := map[string]string{"httplock": "net/http, Run", "ginlock": "gin, Run", "asynqlock": "asynq, Run"}
	f.table = newTable("handler", "µs", "allocs", "µs more than Run", "allocs more than Run")
	for _, name := range names {
		micros, allocs := "", ""
		if than := run[name]; than != "" {
			micros, allocs = medianAndRange("%.2f", more(name, than, requestCost.time)), medianText("%.0f", more(name, than, requestCost.memory))
		}
		f.table.add(name, medianAndRange("%.2f", figuresOf(turns[name], requestCost.time)), medianText("%.0f", figuresOf(turns[name], requestCost.memory)), micros, allocs)
	}
	for _, name := range []string{"httplock", "ginlock"} {
		f.verdicts = append(f.verdicts,
			atMost("P10 "+name+": µs more than Run", 2, "%.2f", more(name, run[name], requestCost.time)),
			atMost("P10 "+name+": allocations more than Run", 10, "%.0f", more(name, run[name], requestCost.memory)))
	}
	return f, nil
}

// serve gives h one request after the other, for the time length. It returns the cost of a request.
func serve(ctx context.Context, h http.Handler, length time.Duration) (requestCost, error) {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders/42", http.NoBody)
	r.Header.Set("X-Order", "42")
	w := &statusWriter{header: make(http.Header)}
	for range 100 {
		h.ServeHTTP(w, r)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began, n := time.Now(), 0
	for ; time.Since(began) < length; n++ {
		if h.ServeHTTP(w, r); w.status != http.StatusNoContent {
			return requestCost{}, fmt.Errorf("status %d", w.status)
		}
	}
	took := time.Since(began)
	runtime.ReadMemStats(&after)
	return requestCost{micros(took) / float64(n), float64(after.Mallocs-before.Mallocs) / float64(n)}, nil
}

// statusWriter is a ResponseWriter that keeps only the status.
type statusWriter struct {
	header http.Header
	status int
}

func (u *statusWriter) Header() http.Header         { return u.header }
func (u *statusWriter) Write(p []byte) (int, error) { return len(p), nil }
func (u *statusWriter) WriteHeader(code int)        { u.status = code }
