package otellock

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/locker"
)

// New returns an Observer for [locker.WithObserver]. One serves any number of Lockers.
//
// Warnings about the server have no place in OpenTelemetry's traces and metrics, so the Observer is
// no [locker.Warner] and they stay in slog.
func New(opts ...Option) (locker.Observer, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	o := &observer{
		config: cfg,
		tracer: cfg.tracers.Tracer(ScopeName, trace.WithInstrumentationVersion(Version), trace.WithSchemaURL(schemaURL)),
	}
	o.targets.init(cfg)
	meter := cfg.meters.Meter(ScopeName, metric.WithInstrumentationVersion(Version), metric.WithSchemaURL(schemaURL))
	o.duration, err = meter.Float64Histogram(durationName, metric.WithUnit(durationUnit),
		metric.WithDescription(durationDescription), metric.WithExplicitBucketBoundaries(durationBounds...))
	if err != nil {
		return nil, fmt.Errorf("otellock: the MeterProvider refuses %s: %w", durationName, err)
	}
	o.requests, err = meter.Int64Counter(requestsName, metric.WithUnit(requestsUnit), metric.WithDescription(requestsDescription))
	if err != nil {
		return nil, fmt.Errorf("otellock: the MeterProvider refuses %s: %w", requestsName, err)
	}
	return o, nil
}

// observer is called by every operation on every lock. What it needs for a name is made once per
// name, so that an operation that nobody samples or measures costs what the tracer's Start costs,
// and no more.
type observer struct {
	config
	tracer   trace.Tracer
	duration metric.Float64Histogram
	requests metric.Int64Counter
	targets  targets
}

var _ locker.RequestObserver = (*observer)(nil)

// measures reports whether somebody reads the histogram. Before version 1.40 of OpenTelemetry, only
// the no-op histogram shows that nobody does.
func (o *observer) measures(ctx context.Context) bool {
	switch histogram := o.duration.(type) {
	case interface{ Enabled(context.Context) bool }:
		return histogram.Enabled(ctx)
	case noop.Float64Histogram:
		return false
	}
	return true
}

// Begin starts the operation's span, if it has one.
func (o *observer) Begin(ctx context.Context, op locker.Op, rule locker.Rule) (context.Context, func(locker.Outcome)) {
	if int(op) >= len(verbs) || verbs[op] == "" || op == locker.OpHold && !o.hold {
		return ctx, nil
	}
	t := o.targets.of(rule.Name)
	around := ctx
	ctx, span := o.tracer.Start(ctx, t.span[op], t.start[rule.Mode&1]...)
	traced := span.IsRecording()
	if traced && op == locker.OpHold {
		ctx = context.WithValue(ctx, surroundingKey{}, surrounding(around))
	}
	timed := op == locker.OpAcquire && o.measures(ctx)
	if traced {
		o.describe(span, rule)
	}
	if !traced && !timed {
		return ctx, nil // a span that does not record has nothing to end
	}
	began := time.Now()
	return ctx, func(out locker.Outcome) {
		kind := errorType(out)
		if timed { // ctx has the span, for the exemplar
			o.duration.Record(ctx, time.Since(began).Seconds(), t.measured(rule.Mode&1, out.Result, kind)...)
		}
		if traced {
			conclude(span, op, out, kind)
		}
		span.End()
	}
}

// describe adds what no sampler decides by.
func (o *observer) describe(span trace.Span, rule locker.Rule) {
	if rule.TTL > 0 {
		span.SetAttributes(attribute.Float64(ttlKey, rule.TTL.Seconds()))
	}
	if o.key {
		span.SetAttributes(attribute.String(keyKey, printable(rule.Key)))
	}
}

// conclude says how the operation ended. The status' description is the error's type, because an
// error's text may hold the key.
func conclude(span trace.Span, op locker.Op, out locker.Outcome, kind string) {
	attrs := make([]attribute.KeyValue, 1, 5)
	attrs[0] = attribute.String(resultKey, string(out.Result))
	if op == locker.OpAcquire {
		attrs = append(attrs, attribute.Int(attemptsKey, out.Calls))
		if out.Waited > 0 {
			attrs = append(attrs, attribute.Float64(waitedKey, out.Waited.Seconds()))
		}
	}
	if op == locker.OpTransact {
		attrs = append(attrs, attribute.Int(beginsKey, out.Calls))
	}
	if out.Fence != 0 {
		attrs = append(attrs, attribute.Int64(fenceKey, int64(out.Fence)))
	}
	if kind != "" {
		attrs = append(attrs, errorTypeKey.String(kind))
		span.SetStatus(codes.Error, kind)
	}
	span.SetAttributes(attrs...)
}
