package otellock

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/locker"
)

// New returns an Observer for [locker.WithObserver]. One Observer serves any number of Lockers.
//
//	observer, err := otellock.New() // the global providers
//	…
//	l, err := locker.New(client, locker.WithObserver(observer))
//
// A caller that waits has a span "acquire NAME" with links to the holder. The result of a refused
// caller is busy, timeout or unavailable. An Observer changes no wait.
func New(opts ...Option) (locker.Observer, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	o := &observer{
		config:  cfg,
		started: time.Now(),
		tracer:  cfg.tracers.Tracer(scopeName, trace.WithInstrumentationVersion(version), trace.WithSchemaURL(schemaURL)),
	}
	o.targets.init(cfg)
	o.everywhere = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(cfg.serverAttributes...))}
	o.operations.New = func() any { return newOperation(o) }
	meter := cfg.meters.Meter(scopeName, metric.WithInstrumentationVersion(version), metric.WithSchemaURL(schemaURL))
	if o.instruments, err = newInstruments(meter); err != nil {
		return nil, err
	}
	o.readers = o.findReaders()
	return o, nil
}

// observer is called by every operation on every lock. If values depend only on a name, observer
// prepares them once for each name. So an operation that is neither sampled nor measured costs no
// more than the tracer's Start.
type observer struct {
	config
	instruments
	readers
	started    time.Time // times are counted from started, because time.Since costs half as much as time.Now
	tracer     trace.Tracer
	targets    targets
	operations sync.Pool          // contains *operation
	everywhere []metric.AddOption // the options for measurements that concern no lock
	limits     limits
}

var _ interface {
	locker.WaitObserver
	locker.RenewalObserver
	locker.RequestObserver
	locker.HolderTracer
	locker.Warner
} = (*observer)(nil)

// Begin starts the operation's span, if it has one, and its measurements.
func (o *observer) Begin(ctx context.Context, op locker.Op, rule locker.Rule) (context.Context, func(locker.Outcome)) {
	place := placeOf(op)
	if place < 0 { // op has neither a span nor a measurement
		return ctx, nil
	}
	t, mode := o.targets.targetOf(rule.Name), rule.Mode&1
	var span trace.Span
	if place >= 0 && (op != locker.OpHold || o.holdSpans) {
		ctx, span = o.start(ctx, place, t, rule)
	}
	measured := o.measures(ctx)
	if span == nil && !measured && op != locker.OpHold { // a hold is always observed, because its loss is logged
		return ctx, nil
	}
	p := o.operations.Get().(*operation)
	p.ctx, p.op, p.rule, p.target, p.mode, p.span, p.measured = ctx, op, rule, t, mode, span, measured
	p.began = o.now()
	if measured {
		p.attrs = o.attributes(ctx)
		if op == locker.OpHold {
			o.leasesHeld.Add(ctx, 1, t.lock[mode].withAttrs(p.attrs).add...)
		}
	}
	return ctx, p.end
}

// now returns the time since New.
func (o *observer) now() time.Duration { return time.Since(o.started) }

// start starts the span of the operation at this place in withSpan. It returns the context with the
// span, and the span; or a nil span if the span does not record, because such a span need not be
// ended.
func (o *observer) start(ctx context.Context, place int, t *target, rule locker.Rule) (context.Context, trace.Span) {
	op, around, options := withSpan[place], ctx, t.start[rule.Mode&1]
	if op == opProcess {
		if outer := trace.SpanContextFromContext(ctx); outer.IsValid() && !outer.IsRemote() {
			return ctx, nil // another instrumentation has begun the span of the task
		}
		options = append(slices.Clip(options), trace.WithSpanKind(trace.SpanKindConsumer))
	}
	ctx, span := o.tracer.Start(ctx, t.span[place], options...)
	if !span.IsRecording() {
		return ctx, nil
	}
	if op == locker.OpHold {
		ctx = context.WithValue(ctx, surroundingKey{}, surrounding(around))
	}
	// The TTL is added after the start, because no sampler needs it.
	if rule.TTL > 0 {
		span.SetAttributes(attribute.Float64(ttlKey, rule.TTL.Seconds()))
	}
	if op == locker.OpAcquire || op == locker.OpHold {
		span.SetAttributes(attribute.String(keyHashKey, o.hash(rule.Key)))
	}
	if o.key {
		span.SetAttributes(attribute.String(keyKey, printable(rule.Key)))
	}
	return ctx, span
}

// attributes returns the attributes that WithMetricAttributes takes from ctx, for measurements.
func (o *observer) attributes(ctx context.Context) []attribute.KeyValue {
	if o.metricAttributes == nil {
		return nil
	}
	return o.metricAttributes(ctx)
}
