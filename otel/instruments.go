package otellock

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// instruments are the instruments that names.go describes.
type instruments struct {
	acquire, wait, hold, release, margin metric.Float64Histogram
	queue                                metric.Int64Histogram
	held, waiting, out                   metric.Int64UpDownCounter

	handoffs, renewals, losses, rejections, regressions metric.Int64Counter
	requests, replays, commits, ticks                   metric.Int64Counter
}

func newInstruments(m metric.Meter) (instruments, error) {
	b := builder{meter: m}
	return instruments{
		acquire: b.seconds(acquireDuration, acquireBounds), wait: b.seconds(waitDuration, acquireBounds),
		hold: b.seconds(holdDuration, holdBounds), release: b.seconds(releaseDuration, releaseBounds),
		margin: b.seconds(renewalMargin, marginBounds), queue: b.sizes(queueLength, queueBounds),
		held: b.gauge(heldActive), waiting: b.gauge(waiterActive), out: b.gauge(out),
		handoffs: b.counter(handoffs), renewals: b.counter(renewals), losses: b.counter(losses),
		rejections: b.counter(fenceRejections), regressions: b.counter(fenceRegressions),
		requests: b.counter(requests), replays: b.counter(replays), commits: b.counter(commits), ticks: b.counter(ticks),
	}, b.err
}

// builder makes instruments, and keeps the errors of the MeterProvider.
type builder struct {
	meter metric.Meter
	err   error
}

func (b *builder) seconds(d described, bounds []float64) metric.Float64Histogram {
	h, err := b.meter.Float64Histogram(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.text), metric.WithExplicitBucketBoundaries(bounds...))
	b.note(d, err)
	return h
}

func (b *builder) sizes(d described, bounds []float64) metric.Int64Histogram {
	h, err := b.meter.Int64Histogram(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.text), metric.WithExplicitBucketBoundaries(bounds...))
	b.note(d, err)
	return h
}

func (b *builder) gauge(d described) metric.Int64UpDownCounter {
	c, err := b.meter.Int64UpDownCounter(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.text))
	b.note(d, err)
	return c
}

func (b *builder) counter(d described) metric.Int64Counter {
	c, err := b.meter.Int64Counter(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.text))
	b.note(d, err)
	return c
}

func (b *builder) note(d described, err error) {
	if err != nil {
		b.err = errors.Join(b.err, fmt.Errorf("otellock: the MeterProvider refuses %s: %w", d.name, err))
	}
}

// enabled is an instrument that knows whether its measurements are read.
type enabled interface{ Enabled(context.Context) bool }

// readers shows whether a reader uses the measurements.
type readers struct {
	off   bool      // the measurements are never read
	asked []enabled // instruments that report whether their measurements are read, because a view may drop some of them; empty: unknown
}

// measured returns what the instruments show about their readers. Before version 1.40 of
// OpenTelemetry, only no-op instruments show that their measurements are not read.
func (i *instruments) measured() (r readers) {
	if _, r.off = i.acquire.(noop.Float64Histogram); r.off {
		return r
	}
	for _, one := range [...]any{i.acquire, i.held, i.losses} {
		e, asks := one.(enabled)
		if !asks {
			return readers{}
		}
		r.asked = append(r.asked, e)
	}
	return r
}

// measures returns true if a reader uses the measurements.
func (r *readers) measures(ctx context.Context) bool {
	for _, e := range r.asked {
		if e.Enabled(ctx) {
			return true
		}
	}
	return !r.off && len(r.asked) == 0
}
