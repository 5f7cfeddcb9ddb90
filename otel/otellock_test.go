package otellock_test

import (
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/locker"
	otellock "github.com/latchkit/latchkit/otel"
)

func TestNilProvidersMeanTheGlobalOnes(t *testing.T) {
	var tracers trace.TracerProvider
	var meters metric.MeterProvider
	o, err := otellock.New(otellock.WithTracerProvider(tracers), otellock.WithMeterProvider(meters))
	if err != nil {
		t.Fatal(err)
	}
	if _, end := o.Begin(t.Context(), locker.OpAcquire, locker.Rule{Key: "order:42", Name: "order", TTL: 30 * time.Second}); end != nil {
		end(locker.Outcome{Result: locker.ResultAcquired, Fence: 7, Calls: 1})
	}
}
