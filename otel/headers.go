package otellock

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Headers carries the context of a trace in the headers of a message, by W3C's trace context: give
// it to asynqlock.WithPropagator. Baggage is not carried. Its zero value is ready.
type Headers struct{}

// Inject adds to headers the span in ctx, if there is one.
func (Headers) Inject(ctx context.Context, headers map[string]string) {
	propagation.TraceContext{}.Inject(ctx, propagation.MapCarrier(headers))
}

// Extract returns ctx with the span that Inject found, as a remote parent. A ctx that has a span
// already, of an instrumentation that was here before, is returned as it is.
func (Headers) Extract(ctx context.Context, headers map[string]string) context.Context {
	if trace.SpanContextFromContext(ctx).IsValid() {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier(headers))
}
