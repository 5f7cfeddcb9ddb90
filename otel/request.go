package otellock

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/locker"
)

// Request counts a request that an adapter guards. It also describes the lock on the span around
// the request, which is usually the span of the HTTP or gRPC server. So a reader of the trace can
// see whether the lock or the handler refused the request. If a request has several locks, the span
// shows the last event.
func (o *observer) Request(ctx context.Context, e locker.RequestEvent) {
	t := o.targets.targetOf(e.Name)
	if o.measures(ctx) {
		attrs := o.attributes(ctx)
		o.requests.Add(ctx, 1, t.optionsFor(series{result: locker.Result(e.Result)}).withAttrs(attrs).add...)
		if e.Result == replayed {
			o.replays.Add(ctx, 1, t.optionsFor(series{}).withAttrs(attrs).add...)
		}
	}
	span := surrounding(ctx)
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.String(nameKey, t.name), attribute.String(resultKey, e.Result))
	if e.Waited >= time.Millisecond {
		span.SetAttributes(attribute.Float64(waitedKey, e.Waited.Seconds()))
	}
}

// replayed is the result of a request that was answered with a stored answer.
const replayed = "replayed"

type surroundingKey struct{}

// surrounding returns the span around the locks of ctx. This span is never a "hold NAME".
func surrounding(ctx context.Context) trace.Span {
	if span, ok := ctx.Value(surroundingKey{}).(trace.Span); ok {
		return span
	}
	return trace.SpanFromContext(ctx)
}
