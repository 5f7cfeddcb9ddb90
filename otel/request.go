package otellock

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/locker"
)

// Request counts a request that an adapter guards. It also describes the lock on the span around
// the request, which is usually the span of the HTTP or gRPC server. So a reader of the trace can
// see whether the lock or the handler refused the request. If a request has several locks, the span
// shows the last event, but the lock that it waited for rather than one that was free.
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
	free := e.Result == string(locker.ResultAcquired) && e.Waited < time.Millisecond
	if !span.IsRecording() || free && showsWait(span) {
		return
	}
	span.SetAttributes(attribute.String(nameKey, t.name), attribute.String(resultKey, e.Result))
	if e.Waited >= time.Millisecond {
		span.SetAttributes(attribute.Float64(waitedKey, e.Waited.Seconds()))
	}
}

// showsWait reports whether the span has the wait for an earlier lock. Only a span of the SDK says so.
func showsWait(span trace.Span) bool {
	s, ok := span.(interface{ Attributes() []attribute.KeyValue })
	return ok && slices.ContainsFunc(s.Attributes(), func(a attribute.KeyValue) bool { return a.Key == waitedKey })
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
