package otellock

import (
	"context"
	"errors"

	"github.com/latchkit/latchkit/locker"
)

// Waiting counts a waiter until its wait ends. The caller calls over when the wait ends.
func (o *observer) Waiting(ctx context.Context, rule locker.Rule, e locker.WaitEvent) (over func()) {
	if !o.measures(ctx) {
		return nil
	}
	attrs := o.attributes(ctx)
	m := o.targets.targetOf(rule.Name).lock[rule.Mode&1].withAttrs(attrs)
	o.waiting.Add(ctx, 1, m.add...)
	if e.Place > 0 {
		o.queue.Record(ctx, int64(e.Place), m.record...)
	}
	return func() { o.waiting.Add(ctx, -1, m.add...) }
}

// A lease was nearly lost if less than 1/nearlyLost of it was left when its renewal succeeded. A
// renewal is due when two thirds of the lease are left.
const nearlyLost = 4

// Renewed counts a renewal, and logs a renewal that failed or nearly came too late.
func (o *observer) Renewed(ctx context.Context, rule locker.Rule, e locker.RenewalEvent) {
	kind := errorType(locker.Outcome{Err: e.Err})
	if o.measures(ctx) {
		attrs, t, mode := o.attributes(ctx), o.targets.targetOf(rule.Name), rule.Mode&1
		o.renewals.Add(ctx, 1, t.optionsFor(series{mode: modeTexts[mode], kind: kind}).withAttrs(attrs).add...)
		if e.Err == nil {
			o.margin.Record(ctx, e.Margin.Seconds(), t.lock[mode].withAttrs(attrs).record...)
		}
	}
	lost := errors.Is(e.Err, locker.ErrLost) // a loss is logged at the end of the hold, and no renewal follows it
	if !lost && (e.Err != nil || e.Margin < e.TTL/nearlyLost) {
		o.logRenewal(ctx, rule, e, kind)
	}
}

// These are the codes of the warnings about a quorum's nodes.
const (
	codeOut      = "node-out"
	codeReturned = "node-returned"
)

// Warn logs a warning, and counts the nodes that are out.
func (o *observer) Warn(w locker.Warning) {
	ctx := context.Background()
	switch w.Code {
	case codeOut:
		o.nodesOut.Add(ctx, 1, o.everywhere...)
	case codeReturned:
		o.nodesOut.Add(ctx, -1, o.everywhere...)
	}
	o.logWarning(ctx, w)
}
