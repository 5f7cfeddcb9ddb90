package otellock_test

import (
	"context"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"

	otellock "github.com/latchkit/latchkit/otel"
)

// The metrics of a lock need no allocations. A span needs an allocation, because even a tracer that
// records nothing makes a context for the span. So the test measures holds, which have no span
// here.
func TestMeasuringALockDoesNotAllocate(t *testing.T) {
	tel := newTelemetry(t, sdktrace.NeverSample(), otellock.WithoutLinks())
	rule := locker.Rule{Key: "order:1", Name: "order"}
	hold := func() {
		_, end := tel.observer.Begin(t.Context(), locker.OpHold, rule)
		end(locker.Outcome{Result: locker.ResultReleased})
	}
	hold() // the first hold is not measured, because it creates the time series
	if n := testing.AllocsPerRun(1000, hold); n != 0 {
		t.Errorf("%v allocations for the measurements of a hold, want none", n)
	}
	renewals := tel.observer.(locker.RenewalObserver)
	renewed := func() {
		renewals.Renewed(t.Context(), rule, locker.RenewalEvent{Margin: 20 * time.Second, TTL: 30 * time.Second})
	}
	renewed()
	if n := testing.AllocsPerRun(1000, renewed); n != 0 {
		t.Errorf("%v allocations for a renewal, want none", n)
	}
}

// BenchmarkALockThatIsObserved shows what an Observer adds to the cost of a lock. It measures
// acquire, hold and release on a Store without a server.
func BenchmarkALockThatIsObserved(b *testing.B) {
	observed := func(opts ...otellock.Option) locker.Option {
		o, err := otellock.New(opts...)
		if err != nil {
			b.Fatal(err)
		}
		return locker.WithObserver(o)
	}
	off, all := newTelemetry(b, sdktrace.NeverSample()), newTelemetry(b, sdktrace.AlwaysSample())
	exported := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.AlwaysSample()))
	for name, opts := range map[string][]locker.Option{
		"none":               nil,
		"metrics":            {observed(otellock.WithTracerProvider(noop.NewTracerProvider()), otellock.WithMeterProvider(off.meters))},
		"metrics, unsampled": {observed(otellock.WithTracerProvider(off.tracers), otellock.WithMeterProvider(off.meters))},
		"metrics and traces": {observed(otellock.WithTracerProvider(exported), otellock.WithMeterProvider(all.meters))},
	} {
		b.Run(name, func(b *testing.B) {
			l, err := locker.NewFromStore(lockertest.NewMemory(), opts...)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = l.Close(context.Background()) }()
			b.ReportAllocs()
			for b.Loop() {
				lease, err := l.Acquire(b.Context(), locker.Rule{Key: "order:1"})
				if err != nil {
					b.Fatal(err)
				}
				if err := lease.Release(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
