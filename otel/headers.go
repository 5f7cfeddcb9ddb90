package otellock

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Headers carries the context of a trace in the headers of a message, as W3C's Trace Context
// defines. It does not carry baggage. Give Headers to asynqlock.WithPropagator. The zero value is
// ready to use.
type Headers struct{}

// Inject adds to headers the span in ctx, if there is one.
func (Headers) Inject(ctx context.Context, headers map[string]string) {
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(headers))
}

// Extract returns ctx with the span that Inject has added to headers, as a remote parent. If ctx
// has a span already, from another instrumentation, Extract returns ctx unchanged.
func (Headers) Extract(ctx context.Context, headers map[string]string) context.Context {
	if trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier(headers))
}
