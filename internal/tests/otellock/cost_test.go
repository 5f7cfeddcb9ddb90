package otellock_test

import (
	"context"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"

	otellock "github.com/latchkit/latchkit/otel"
)

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
			l, err := locktest.NewEngine(lockertest.NewMemory(), opts...)
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
