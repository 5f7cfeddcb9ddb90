package otellock

import (
	"context"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/locker"
)

// operation is one observed operation. It is reused when it has ended, so that measuring an
// operation allocates no memory.
type operation struct {
	observer *observer
	end      func(locker.Outcome) // the method value p.finish, kept here because each new method value allocates memory

	ctx      context.Context // the context with the span, for exemplars
	op       locker.Op
	rule     locker.Rule
	target   *target
	mode     locker.Mode
	span     trace.Span // nil: no span, or a span that does not record
	measured bool
	attrs    []attribute.KeyValue // the attributes of measurements that come from ctx
	began    time.Duration        // see observer.now
}

func newOperation(o *observer) *operation {
	p := &operation{observer: o}
	p.end = p.finish
	return p
}

// finish records the Outcome of the operation, ends its span, and puts the operation back for
// reuse. It is called once, when the operation has ended.
func (p *operation) finish(out locker.Outcome) {
	o, kind := p.observer, errorType(out)
	if p.measured {
		p.measure(out, kind)
	}
	if p.op == locker.OpHold && out.Cause != "" {
		o.logLoss(p, out, kind)
	}
	if p.op == locker.OpAcquire && out.Result == locker.ResultTimeout && o.links && sameTrace(p.ctx, out.Met) {
		o.logSameTrace(p, out)
	}
	if p.span != nil {
		p.conclude(out, kind)
		p.span.End()
	}
	*p = operation{observer: o, end: p.end}
	o.operations.Put(p)
}

// measure records the measurements of the operation. out is its Outcome, and kind is the
// error.type.
func (p *operation) measure(out locker.Outcome, kind string) {
	o, took := p.observer, (p.observer.now() - p.began).Seconds()
	all := series{mode: modeTexts[p.mode], result: out.Result, kind: kind}
	switch p.op {
	case locker.OpAcquire:
		all.contended = strconv.FormatBool(out.Waited > 0 || out.Result == locker.ResultBusy || out.Result == locker.ResultTooManyWaiters)
		o.acquire.Record(p.ctx, took, p.usualOptions(all).record...)
		if out.Waited > 0 && p.rule.Wait != locker.NoWait {
			o.wait.Record(p.ctx, out.Waited.Seconds(), p.optionsFor(series{mode: all.mode, result: out.Result}).record...)
		}
		if out.Handoff != "" {
			o.handoffs.Add(p.ctx, 1, p.optionsFor(series{mode: all.mode, scope: out.Handoff}).add...)
		}
	case locker.OpHold:
		o.leasesHeld.Add(p.ctx, -1, p.target.lock[p.mode].withAttrs(p.attrs).add...)
		o.hold.Record(p.ctx, took, p.usualOptions(series{mode: all.mode, result: out.Result}).record...)
		if out.Cause != "" {
			o.losses.Add(p.ctx, 1, p.optionsFor(series{mode: all.mode, cause: out.Cause}).add...)
		}
	case locker.OpRelease:
		o.release.Record(p.ctx, took, p.usualOptions(all).record...)
	case opTransact:
		p.measureCommit(out)
	default: // extends and revokes are rare, and not measured
	}
}

// measureCommit counts a transaction by its result, and counts the transactions that a fence
// refused.
func (p *operation) measureCommit(out locker.Outcome) {
	o, name := p.observer, p.optionsFor(series{})
	o.commits.Add(p.ctx, 1, p.optionsFor(series{result: out.Result}).add...)
	switch out.Result {
	case resultStaleFence:
		o.rejections.Add(p.ctx, 1, name.add...)
	case resultFenceRegressed:
		o.regressions.Add(p.ctx, 1, name.add...)
	default:
	}
}

// usualOptions returns the measurement options for series s, from the cache of its target. It is
// for measurements that every operation of this kind makes.
func (p *operation) usualOptions(s series) *measurement {
	return p.target.cachedOptions(p.op, p.mode, s).withAttrs(p.attrs)
}

// optionsFor returns the measurement options for series s, with the attributes from ctx.
func (p *operation) optionsFor(s series) *measurement {
	return p.target.optionsFor(s).withAttrs(p.attrs)
}

// conclude writes into the span how the operation ended: its Outcome and kind, its error.type. The
// description of the status is the error's type, because an error's text may contain the key.
func (p *operation) conclude(out locker.Outcome, kind string) {
	attrs := make([]attribute.KeyValue, 1, 8)
	attrs[0] = attribute.String(resultKey, string(out.Result))
	if p.op == locker.OpAcquire {
		attrs = append(attrs, attribute.Int(attemptsKey, out.Calls))
		if out.Waited > 0 && p.rule.Wait != locker.NoWait {
			attrs = append(attrs, attribute.Float64(waitedKey, out.Waited.Seconds()))
		}
		attrs = p.showOthers(attrs, out)
	}
	switch p.op {
	case opTransact:
		attrs = append(attrs, attribute.Int(beginsKey, out.Calls))
	case opUpdate:
		attrs = append(attrs, attribute.Int(updatesKey, out.Calls))
	default:
	}
	if out.Fence != 0 {
		attrs = append(attrs, attribute.Int64(fenceKey, int64(out.Fence)))
	}
	if kind != "" {
		attrs = append(attrs, errorTypeKey.String(kind))
		p.span.SetStatus(codes.Error, kind)
	}
	p.span.SetAttributes(attrs...)
}

// showOthers returns attrs with attributes of the holders for which an acquire waited. It also
// links the span to their spans.
func (p *operation) showOthers(attrs []attribute.KeyValue, out locker.Outcome) []attribute.KeyValue {
	if out.Met.Fence != 0 {
		attrs = append(attrs, attribute.Int64(holderFenceKey, int64(out.Met.Fence)))
	}
	if out.HolderMetadata != "" {
		attrs = append(attrs, attribute.String(holderTextKey, printable(out.HolderMetadata)))
	}
	if out.Streak > 0 {
		attrs = append(attrs, attribute.Int(streakKey, out.Streak))
	}
	if !p.observer.links {
		return attrs
	}
	link(p.span, roleHolder, out.Met)
	link(p.span, roleReleasedBy, out.ReleasedBy)
	if sameTrace(p.ctx, out.Met) {
		attrs = append(attrs, attribute.Bool(sameTraceKey, true))
	}
	return attrs
}
