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
	requests, replays, commits                          metric.Int64Counter
}

// newInstruments makes all instruments with m.
func newInstruments(m metric.Meter) (instruments, error) {
	var err error
	seconds, counter := m.Float64Histogram, m.Int64Counter
	i := instruments{
		acquire: instrument(&err, seconds, acquireDuration), wait: instrument(&err, seconds, waitDuration),
		hold: instrument(&err, seconds, holdDuration), release: instrument(&err, seconds, releaseDuration),
		margin: instrument(&err, seconds, renewalMargin), queue: instrument(&err, m.Int64Histogram, queueLength),
		leasesHeld: instrument(&err, m.Int64UpDownCounter, heldActive), waiting: instrument(&err, m.Int64UpDownCounter, waiterActive),
		nodesOut: instrument(&err, m.Int64UpDownCounter, nodesOut),
		handoffs: instrument(&err, counter, handoffs), renewals: instrument(&err, counter, renewals), losses: instrument(&err, counter, losses),
		rejections: instrument(&err, counter, fenceRejections), regressions: instrument(&err, counter, fenceRegressions),
		requests: instrument(&err, counter, requests), replays: instrument(&err, counter, replays),
		commits: instrument(&err, counter, commits),
	}
	return i, err
}

// instrument makes the instrument that d describes. It adds an error of the MeterProvider to errs.
func instrument[I, O any](errs *error, create func(string, ...O) (I, error), d description) I {
	var options []O
	for _, option := range [...]any{metric.WithUnit(d.unit), metric.WithDescription(d.text), metric.WithExplicitBucketBoundaries(d.bounds...)} {
		if o, ok := option.(O); ok { // only histograms have boundaries
			options = append(options, o)
		}
	}
	i, err := create(d.name, options...)
	if err != nil {
		*errs = errors.Join(*errs, fmt.Errorf("otellock: the MeterProvider refuses %s: %w", d.name, err))
	}
	return i
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
