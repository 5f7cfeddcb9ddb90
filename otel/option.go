package otellock

import (
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// An Option sets up the Observer that [New] returns.
type Option func(*config)

// config is what the options set; its defaults stand in newConfig and nowhere else.
type config struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider

	hold bool
	key  bool

	spanAttributes   []attribute.KeyValue
	metricAttributes []attribute.KeyValue
}

func newConfig(opts []Option) (config, error) {
	c := config{tracers: otel.GetTracerProvider(), meters: otel.GetMeterProvider()}
	for i, o := range opts {
		if o == nil {
			return c, fmt.Errorf("otellock: option %d is nil; leave it out instead", i+1)
		}
		o(&c)
	}
	return c, nil
}

// WithTracerProvider sets where spans go. Default, also for nil: otel.GetTracerProvider.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) {
		if p != nil {
			c.tracers = p
		}
	}
}

// WithMeterProvider sets where measurements go. Default, also for nil: otel.GetMeterProvider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) {
		if p != nil {
			c.meters = p
		}
	}
}

// WithHoldSpans adds a span "hold NAME" around the work under the lock. Default: none, the work's
// spans are children of the caller's.
func WithHoldSpans() Option { return func(c *config) { c.hold = true } }

// WithKey adds the key to the spans, as latchkit.lock.key. Keys often name customers, and whoever
// reads the traces can read them then. Metrics never have the key. Default: it is not exported.
func WithKey() Option { return func(c *config) { c.key = true } }

// WithSpanAttributes adds these attributes to every span, from its start. Default: none.
func WithSpanAttributes(attrs ...attribute.KeyValue) Option {
	return func(c *config) { c.spanAttributes = append(c.spanAttributes, attrs...) }
}

// WithMetricAttributes adds these attributes to every measurement. Default: none.
func WithMetricAttributes(attrs ...attribute.KeyValue) Option {
	return func(c *config) { c.metricAttributes = append(c.metricAttributes, attrs...) }
}
