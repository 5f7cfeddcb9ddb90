package otellock

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// instruments has one field for each instrument that names.go describes.
type instruments struct {
	acquire, wait, hold, release, margin metric.Float64Histogram
	queue                                metric.Int64Histogram
	leasesHeld, waiting, nodesOut        metric.Int64UpDownCounter

	handoffs, renewals, losses, rejections, regressions metric.Int64Counter
	requests, replays, commits, ticks                   metric.Int64Counter
}

// newInstruments makes all instruments with m.
func newInstruments(m metric.Meter) (instruments, error) {
	b := builder{meter: m}
	return instruments{
		acquire: b.seconds(acquireDuration, acquireBounds), wait: b.seconds(waitDuration, acquireBounds),
		hold: b.seconds(holdDuration, holdBounds), release: b.seconds(releaseDuration, releaseBounds),
		margin: b.seconds(renewalMargin, marginBounds), queue: b.sizes(queueLength, queueBounds),
		leasesHeld: b.gauge(heldActive), waiting: b.gauge(waiterActive), nodesOut: b.gauge(nodesOut),
		handoffs: b.counter(handoffs), renewals: b.counter(renewals), losses: b.counter(losses),
		rejections: b.counter(fenceRejections), regressions: b.counter(fenceRegressions),
		requests: b.counter(requests), replays: b.counter(replays), commits: b.counter(commits), ticks: b.counter(ticks),
	}, b.err
}

// builder makes instruments with meter, and collects the errors of the MeterProvider in err.
type builder struct {
	meter metric.Meter
	err   error
}

func (b *builder) seconds(d description, bounds []float64) metric.Float64Histogram {
	h, err := b.meter.Float64Histogram(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.text), metric.WithExplicitBucketBoundaries(bounds...))
	b.note(d, err)
	return h
}

func (b *builder) sizes(d description, bounds []float64) metric.Int64Histogram {
	h, err := b.meter.Int64Histogram(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.text), metric.WithExplicitBucketBoundaries(bounds...))
	b.note(d, err)
	return h
}

func (b *builder) gauge(d description) metric.Int64UpDownCounter {
	c, err := b.meter.Int64UpDownCounter(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.text))
	b.note(d, err)
	return c
}

func (b *builder) counter(d description) metric.Int64Counter {
	c, err := b.meter.Int64Counter(d.name, metric.WithUnit(d.unit), metric.WithDescription(d.text))
	b.note(d, err)
	return c
}

func (b *builder) note(d description, err error) {
	if err != nil {
		b.err = errors.Join(b.err, fmt.Errorf("otellock: the MeterProvider refuses %s: %w", d.name, err))
	}
}

// enabled is an instrument that can report whether its measurements are read.
type enabled interface{ Enabled(context.Context) bool }

// readers records what is known about the readers of the measurements.
type readers struct {
	unread    bool      // no reader ever reads the measurements
	reporters []enabled // instruments that can report whether their measurements are read; empty: unknown
}

// findReaders returns what the instruments show about their readers. It asks several instruments,
// because a view may drop some of them. Before version 1.40 of OpenTelemetry, only no-op
// instruments show that their measurements are not read.
func (i *instruments) findReaders() (r readers) {
	if _, r.unread = i.acquire.(noop.Float64Histogram); r.unread {
		return r
	}
	for _, one := range [...]any{i.acquire, i.leasesHeld, i.losses} {
		e, asks := one.(enabled)
		if !asks {
			return readers{}
		}
		r.reporters = append(r.reporters, e)
	}
	return r
}

// measures reports whether measurements must be made: a reader uses them, or readers are unknown.
func (r *readers) measures(ctx context.Context) bool {
	for _, e := range r.reporters {
		if e.Enabled(ctx) {
			return true
		}
	}
	return !r.unread && len(r.reporters) == 0
}
