package otellock_test

import (
	"context"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	otellock "github.com/latchkit/latchkit/otel"
)

var order = locker.Rule{Key: "order:42", Name: "order", TTL: 30 * time.Second}

var granted = locker.Outcome{Result: locker.ResultAcquired, Fence: 7, Calls: 1}

func noop(t testing.TB, opts ...otellock.Option) locker.Observer {
	t.Helper()
	return observer(t, append(opts,
		otellock.WithTracerProvider(tracenoop.NewTracerProvider()), otellock.WithMeterProvider(metricnoop.NewMeterProvider()))...)
}

func observer(t testing.TB, opts ...otellock.Option) locker.Observer {
	t.Helper()
	o, err := otellock.New(opts...)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestNilProvidersMeanTheGlobalOnes(t *testing.T) {
	var tracers trace.TracerProvider
	var meters metric.MeterProvider
	o := observer(t, otellock.WithTracerProvider(tracers), otellock.WithMeterProvider(meters))
	if _, end := o.Begin(t.Context(), locker.OpAcquire, order); end != nil {
		end(granted)
	}
}

func BenchmarkObserver(b *testing.B) {
	for name, opts := range map[string][]locker.Option{
		"none": nil,
		"noop": {locker.WithObserver(noop(b))},
	} {
		b.Run(name, func(b *testing.B) {
			l := lockertest.NewLocker(b, lockertest.NewMemory(), opts...)
			b.ReportAllocs()
			for b.Loop() {
				if err := locker.Run(b.Context(), l, order, func(context.Context) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkBeginAndEnd(b *testing.B) {
	o := noop(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, end := o.Begin(b.Context(), locker.OpAcquire, order); end != nil {
			end(granted)
		}
	}
}
