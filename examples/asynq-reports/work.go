package main

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
)

// A report is a task that locks the tenant's tables. So only one report is made for a tenant at a
// time.
type report struct {
	Tenant string `json:"tenant"`
	Month  string `json:"month"`
}

// An upload is a file of a shop. The files of one shop are imported one at a time, in the order
// in which their tasks were enqueued.
type upload struct {
	Shop string `json:"shop"`
	File int    `json:"file"`
}

// An invoice is sent only once, even if it is ordered several times.
type invoice struct {
	Number int    `json:"number"`
	To     string `json:"to"`
}

// guard returns the Guard with all rules, for workers and for clients that enqueue.
func guard(l locker.Locker, c redis.UniversalClient) (*asynqlock.Guard, error) {
	return asynqlock.New(l,
		asynqlock.WithWaking(c), // a task that was put off runs as soon as its key is free
		asynqlock.On("report:monthly", asynqlock.Template("tenant:{payload.tenant}"), asynqlock.Wait(10*time.Second)),
		asynqlock.On("import:file", asynqlock.Template("shop:{payload.shop}")),
		asynqlock.On("invoice:send", asynqlock.Template("invoice:{payload.number}"), asynqlock.Unique(), asynqlock.Once(24*time.Hour), asynqlock.Drop()),
		asynqlock.On("*", asynqlock.ByTaskID()),
		asynqlock.WithPropagator(otellock.Headers{}), // the trace continues in the worker
	)
}

// work records what the handlers did.
type work struct {
	tracer trace.Tracer

	mu              sync.Mutex
	running         map[string]int // for each tenant: how many reports are being made
	mostRunning     map[string]int // for each tenant: the largest number of reports that were made at the same time
	finishedReports []report
	read            []upload
	sentInvoices    map[int]int // for each invoice, by its number: how often it was sent
}

// mux returns the handlers of the tasks. The only code for locks is the middleware.
func (w *work) mux(g *asynqlock.Guard) *asynq.ServeMux {
	mux := asynq.NewServeMux()
	mux.Use(g.Middleware)
	mux.HandleFunc("report:monthly", w.makeReport)
	mux.HandleFunc("import:file", w.importFile)
	mux.HandleFunc("invoice:send", w.sendInvoice)
	mux.HandleFunc("stats:count", func(context.Context, *asynq.Task) error { return nil })
	return mux
}

func (w *work) makeReport(ctx context.Context, t *asynq.Task) error {
	var r report
	if err := json.Unmarshal(t.Payload(), &r); err != nil {
		return err
	}
	ctx, span := w.tracer.Start(ctx, "make report")
	defer span.End()
	w.count(r, 1)
	defer w.count(r, -1)
	select {
	case <-time.After(50 * time.Millisecond): // making a report takes this long
	case <-ctx.Done(): // the time of the task is over, or its lock was lost
		return context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finishedReports = append(w.finishedReports, r)
	return nil
}

func (w *work) importFile(ctx context.Context, t *asynq.Task) error {
	var u upload
	if err := json.Unmarshal(t.Payload(), &u); err != nil {
		return err
	}
	select {
	case <-time.After(20 * time.Millisecond): // an import takes this long
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.read = append(w.read, u)
	return nil
}

func (w *work) count(r report, more int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[r.Tenant] += more
	w.mostRunning[r.Tenant] = max(w.mostRunning[r.Tenant], w.running[r.Tenant])
}

func (w *work) sendInvoice(_ context.Context, t *asynq.Task) error {
	var i invoice
	if err := json.Unmarshal(t.Payload(), &i); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sentInvoices[i.Number]++
	return nil
}
