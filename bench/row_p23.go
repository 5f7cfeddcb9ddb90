package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
)

// P23 measures what an Observer costs.
var observerRow = row{
	name:  "P23",
	title: "What an Observer adds to a lock, one goroutine, on a Store in memory",
	about: `Acquire and Release without contention, in the bench's own process, so that no server hides the
cost. "more" is the difference to the lock without an Observer in the same round. The SDK has a
reader of metrics and a batcher whose exporter does nothing, and its sampler follows the caller's
span: "unsampled" has metrics and no spans, "sampled" has both, with links switched on. The largest
part of the cost of "unsampled" is in the SDK: the Start of two spans, and five measurements.`,
	run: runObserver,
}

// observedLock is one way to observe a lock.
type observedLock struct {
	name    string
	option  locker.Option
	sampled bool // the span of the caller is sampled
}

// cost is what one acquire and one release cost together.
type cost struct{ cpu, micros, allocs float64 }

const (
	unobserved, nilObserver = "without", "nil Observer"
	unsampled, sampled      = "SDK, unsampled", "SDK, sampled"
)

func runObserver(ctx context.Context, o order) (f finding, err error) {
	tracers := sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())), sdktrace.WithBatcher(tracetest.NewNoopExporter()))
	defer func() { _ = tracers.Shutdown(context.WithoutCancel(ctx)) }() // Shutdown has nothing to export, because there is no exporter
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	observer, err := otellock.New(otellock.WithTracerProvider(tracers), otellock.WithMeterProvider(meters))
	if err != nil {
		return f, err
	}
	ways := []observedLock{
		{name: unobserved, option: locker.WithOptions()},
		{name: nilObserver, option: locker.WithObserver(nil)},
		{name: unsampled, option: locker.WithObserver(observer)},
		{name: sampled, option: locker.WithObserver(observer), sampled: true},
	}
	costs := make(map[string][]cost)
	for round := range o.aloneRounds {
		for _, w := range ways {
			progress("round %d of %d: %s", round+1, o.aloneRounds, w.name)
			c, err := w.take(ctx, o.turn/2)
			if err != nil {
				return f, fmt.Errorf("%s: %w", w.name, err)
			}
			costs[w.name] = append(costs[w.name], c)
		}
	}
	f.table = newTable("Observer", "CPU µs", "µs", "allocs", "CPU µs more", "allocs more")
	for _, w := range ways {
		f.table.add(w.name, medianAndRange("%.2f", figuresOf(costs[w.name], cost.ofCPU)), medianAndRange("%.2f", figuresOf(costs[w.name], cost.ofTime)),
			medianText("%.1f", figuresOf(costs[w.name], cost.ofAllocs)),
			medianAndRange("%.2f", extraCost(costs, w.name, cost.ofCPU)), medianText("%.1f", extraCost(costs, w.name, cost.ofAllocs)))
	}
	f.verdicts = []verdict{
		atMost("P23 nil Observer: allocations more", 0.05, "%.2f", extraCost(costs, nilObserver, cost.ofAllocs)),
		atMost("P23 SDK, unsampled: CPU µs more", 5, "%.2f", extraCost(costs, unsampled, cost.ofCPU)),
	}
	return f, nil
}

// take acquires and releases a lock again and again for the time length.
func (w observedLock) take(ctx context.Context, length time.Duration) (c cost, err error) {
	parent := trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, Remote: true}
	if w.sampled {
		parent.TraceFlags = trace.FlagsSampled
	}
	ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(parent))
	l, err := locktest.NewEngine(lockertest.NewMemory(), w.option)
	if err != nil {
		return c, err
	}
	defer func() { _ = l.Close(context.WithoutCancel(ctx)) }() // the error does not matter: a lease in memory harms no other process
	const warm, batch = 100, 100
	if err := lockAndUnlock(ctx, l, warm); err != nil {
		return c, err
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, err := ownCPU()
	if err != nil {
		return c, err
	}
	began, n := time.Now(), 0
	for ; time.Since(began) < length; n += batch {
		if err := lockAndUnlock(ctx, l, batch); err != nil {
			return c, err
		}
	}
	took := time.Since(began)
	used, err := ownCPU()
	if err != nil {
		return c, err
	}
	runtime.ReadMemStats(&after)
	return cost{
		cpu: micros(used-cpu) / float64(n), micros: micros(took) / float64(n), allocs: float64(after.Mallocs-before.Mallocs) / float64(n),
	}, nil
}

func lockAndUnlock(ctx context.Context, l locker.Locker, times int) error {
	for range times {
		lease, err := l.Acquire(ctx, locker.Rule{Key: "order:42"})
		if err != nil {
			return err
		}
		if err := lease.Release(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c cost) ofCPU() float64    { return c.cpu }
func (c cost) ofTime() float64   { return c.micros }
func (c cost) ofAllocs() float64 { return c.allocs }

// extraCost returns, for each round, the figure of the named way minus the figure without an
// Observer.
func extraCost(costs map[string][]cost, name string, figure func(cost) float64) []float64 {
	differences := figuresOf(costs[name], figure)
	for i, without := range figuresOf(costs[unobserved], figure) {
		differences[i] -= without
	}
	return differences
}
