package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
)

// An office has all parts of the demonstration: two workers, and two clients that enqueue tasks.
// Each worker has its own Locker, as in a separate process.
type office struct {
	redis   *redis.Client
	lockers []*locker.Engine
	guards  []*asynqlock.Guard
	servers []*asynq.Server
	work    *work
	spans   *spans
	plain   *asynq.Client // enqueues without rules
	// enqueues tasks as the rules of the Guard require, for example with Unique
	client  *asynqlock.Client
	dropped chan string // receives the code of the problem for which a task was dropped
}

const workers = 2

func open(c *redis.Client) (_ *office, err error) {
	o := &office{redis: c, spans: newSpans(), plain: asynq.NewClientFromRedisClient(c), dropped: make(chan string, 10)}
	o.work = &work{tracer: o.spans.tracer(), running: map[string]int{}, mostRunning: map[string]int{}, sentInvoices: map[int]int{}}
	otel.SetTracerProvider(o.spans.provider)
	observer, err := otellock.New(otellock.WithHoldSpans())
	if err != nil {
		return nil, err
	}
	for range workers {
		l, err := locker.New(c, locker.WithObserver(observer)) // this option turns tracing on
		if err != nil {
			return nil, err
		}
		g, err := guard(l, c)
		if err != nil {
			return nil, err
		}
		mux := o.work.mux(g)
		o.lockers, o.guards = append(o.lockers, l), append(o.guards, g)
		o.client = g.Client(o.plain)
		server := asynq.NewServerFromRedisClient(c, g.Configure(asynq.Config{
			Concurrency: 4, TaskCheckInterval: 10 * time.Millisecond, LogLevel: asynq.ErrorLevel, ShutdownTimeout: time.Second,
		}))
		o.servers = append(o.servers, server)
		if err := server.Start(o.recordDrops(mux)); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// recordDrops returns a handler that calls mux, and sends the code of each dropped task to
// o.dropped.
func (o *office) recordDrops(mux *asynq.ServeMux) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		err := mux.ProcessTask(ctx, t)
		if p, ok := errors.AsType[*asynqlock.Problem](err); ok && p.Verdict == asynqlock.Dropped {
			o.dropped <- p.Code
		}
		return err
	})
}

func (o *office) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, g := range o.guards {
		_ = g.Stop(ctx) // tasks that still wait for their keys are put off
	}
	for _, s := range o.servers {
		s.Shutdown()
	}
	for _, l := range o.lockers {
		_ = l.Drain(ctx) // waits for a task that its server has given up
		_ = l.Close(ctx) // a lease that is still held ends after its TTL
	}
}

// orderReports orders five reports for two tenants at the same time.
func (o *office) orderReports(ctx context.Context, out io.Writer) error {
	fmt.Fprintln(out, "Five reports for two tenants are ordered at once. Two workers make them, one at a time for each tenant.")
	orders := []report{{"acme", "2026-08"}, {"acme", "2026-09"}, {"acme", "2026-10"}, {"globex", "2026-09"}, {"globex", "2026-10"}}
	for _, r := range orders {
		ctx, span := o.work.tracer.Start(ctx, "order report")
		_, err := o.client.EnqueueContext(ctx, task("report:monthly", r))
		span.End()
		if err != nil {
			return err
		}
	}
	if err := o.await(ctx, func() bool { return len(o.work.finishedReports) == len(orders) }); err != nil {
		return err
	}
	o.work.mu.Lock()
	defer o.work.mu.Unlock()
	for _, tenant := range []string{"acme", "globex"} {
		n := 0
		for _, r := range o.work.finishedReports {
			if r.Tenant == tenant {
				n++
			}
		}
		fmt.Fprintf(out, "  %-7s %d reports, at most %d at a time\n", tenant, n, o.work.mostRunning[tenant])
	}
	fmt.Fprintln(out, "The trace of a report that waited, from the order in this process to the work in the worker:")
	return o.spans.print(ctx, out)
}

// orderImports orders six imports of one shop while another program holds the shop's key, so all
// six imports are put off.
func (o *office) orderImports(ctx context.Context, out io.Writer) error {
	fmt.Fprintln(out, "\nAn operator has locked a shop. Six files of the shop arrive.")
	lease, err := o.lockers[0].Acquire(ctx, locker.Rule{Key: "shop:acme"})
	if err != nil {
		return err
	}
	inspector := asynq.NewInspectorFromRedisClient(o.redis)
	const files = 6
	for n := range files {
		info, err := o.client.EnqueueContext(ctx, task("import:file", upload{"acme", n}))
		if err != nil {
			return err
		}
		if err := o.await(ctx, func() bool {
			now, err := inspector.GetTaskInfo(info.Queue, info.ID)
			return err == nil && now.State == asynq.TaskStateRetry
		}); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "  all are put off; no worker waits, and no retry is used")
	if err := lease.Release(ctx); err != nil {
		return err
	}
	if err := o.await(ctx, func() bool { return len(o.work.read) == files }); err != nil {
		return err
	}
	o.work.mu.Lock()
	defer o.work.mu.Unlock()
	inOrder := slices.IsSortedFunc(o.work.read, func(a, b upload) int { return a.File - b.File })
	fmt.Fprintf(out, "  the operator is done: each file wakes the next one, in the order of arrival: %v\n", inOrder)
	return nil
}

// orderInvoices orders an invoice three times. The worker sends the invoice only once.
func (o *office) orderInvoices(ctx context.Context, out io.Writer) error {
	fmt.Fprintln(out, "\nInvoice 4711 is ordered three times.")
	bill := invoice{4711, "ann@example.org"}
	info, err := o.client.EnqueueContext(ctx, task("invoice:send", bill), asynq.ProcessIn(time.Hour))
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "  the first order is enqueued, to run in an hour")
	if _, err := o.client.EnqueueContext(ctx, task("invoice:send", bill)); !errors.Is(err, asynq.ErrDuplicateTask) {
		return fmt.Errorf("the second order was enqueued as well: %w", err)
	}
	fmt.Fprintln(out, "  the second order is refused: the task is Unique, and the first one is scheduled")
	if err := asynq.NewInspectorFromRedisClient(o.redis).RunTask(info.Queue, info.ID); err != nil {
		return err
	}
	if err := o.await(ctx, func() bool { return o.work.sentInvoices[bill.Number] > 0 }); err != nil {
		return err
	}
	fmt.Fprintln(out, "  the first order runs, and sends the invoice")
	if _, err := o.plain.EnqueueContext(ctx, task("invoice:send", bill)); err != nil { // this client does not know the rules
		return err
	}
	select {
	case code := <-o.dropped:
		fmt.Fprintf(out, "  the third order is dropped, %s: the task has Once\n", code)
	case <-ctx.Done():
		return ctx.Err()
	}
	o.work.mu.Lock()
	defer o.work.mu.Unlock()
	fmt.Fprintf(out, "  sent: %d time\n", o.work.sentInvoices[bill.Number])
	return nil
}

func task(typename string, payload any) *asynq.Task {
	text, err := json.Marshal(payload)
	if err != nil {
		panic(err) // cannot happen, because JSON can encode all these types
	}
	return asynq.NewTask(typename, text)
}

// await calls cond again and again, until cond returns true or ctx ends. It locks o.work.mu
// during each call.
func (o *office) await(ctx context.Context, cond func() bool) error {
	for {
		o.work.mu.Lock()
		is := cond()
		o.work.mu.Unlock()
		if is {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
