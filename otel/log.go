package otellock

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/locker"
)

// limits has a limiter for each kind of record. Without limiters, the failure of a server would
// cause a record for every lock at once.
type limits struct{ loss, trouble, hint limiter }

const (
	// mostRecords is the largest number of records of one kind that are written within perWhile.
	mostRecords = 10
	perWhile    = 10 * time.Second
)

// limiter limits the number of records of one kind.
type limiter struct {
	mu          sync.Mutex
	windowStart time.Time
	written     int
	dropped     int
}

// allows reports whether a record may be written at the time now. dropped is the number of records
// that were dropped since the last written record.
func (l *limiter) allows(now time.Time) (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.windowStart) >= perWhile {
		l.windowStart, l.written = now, 0
	}
	if l.written >= mostRecords {
		l.dropped++
		return 0, false
	}
	l.written++
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}

// logLoss logs that a lease ended without a release. p is the hold, and kind its error.type.
func (o *observer) logLoss(p *operation, out locker.Outcome, kind string) {
	level, text := slog.LevelError, "latchkit: a lock was lost while it was in use"
	switch out.Result {
	case locker.ResultRevoked:
		level, text = slog.LevelWarn, "latchkit: an operator has revoked a lock that was in use"
	case locker.ResultExpired:
		level, text = slog.LevelWarn, "latchkit: a lock reached its maximum duration while it was in use"
	default:
	}
	o.log(p.ctx, &o.limits.loss, level, text, p.rule, out.Err,
		slog.String(causeKey, out.Cause), slog.String(string(errorTypeKey), kind),
		slog.Uint64(fenceKey, out.Fence), slog.Duration("held", o.now()-p.began))
}

// logRenewal logs a renewal that failed, or that nearly came too late.
func (o *observer) logRenewal(ctx context.Context, rule locker.Rule, e locker.RenewalEvent, kind string) {
	text := "latchkit: a lease was renewed so late that it was nearly lost"
	attrs := []slog.Attr{slog.Duration("margin", e.Margin), slog.Duration("ttl", e.TTL)}
	if e.Margin < 0 {
		text = "latchkit: the answer to a renewal came after the deadline of the lease, which nobody had taken"
	}
	if e.Err != nil {
		text = "latchkit: a lease could not be renewed, and the renewal is tried again"
		attrs = append(attrs, slog.String(string(errorTypeKey), kind))
	}
	o.log(ctx, &o.limits.trouble, slog.LevelWarn, text, rule, e.Err, attrs...)
}

// logSameTrace logs that a caller has waited without success for a holder of its own trace.
func (o *observer) logSameTrace(p *operation, out locker.Outcome) {
	o.log(p.ctx, &o.limits.hint, slog.LevelWarn,
		"latchkit: a caller has waited without success for a lock that is held under the same trace; a call that waits for its caller deadlocks; give the called service the fence in the request instead of taking the lock twice",
		p.rule, nil, slog.Uint64(holderFenceKey, out.Met.Fence), slog.String(holderTextKey, printable(out.HolderMetadata)), slog.Duration("waited", out.Waited))
}

// logWarning logs a warning about the server's settings or about a quorum's nodes.
func (o *observer) logWarning(ctx context.Context, w locker.Warning) {
	level := slog.LevelWarn
	if w.Code == codeReturned {
		level = slog.LevelInfo
	}
	o.slog().Log(ctx, level, "latchkit: "+w.Text, "code", w.Code)
}

// log writes a record about the lock of rule, with err, attrs and the identity of the span in ctx.
// It drops the record if l does not allow it.
func (o *observer) log(ctx context.Context, l *limiter, level slog.Level, text string, rule locker.Rule, err error, attrs ...slog.Attr) {
	logger := o.slog()
	if !logger.Enabled(ctx, level) {
		return
	}
	dropped, ok := l.allows(time.Now())
	if !ok {
		return
	}
	all := append(make([]slog.Attr, 0, len(attrs)+6), slog.String(nameKey, printable(rule.Name)), slog.String(modeKey, rule.Mode.String()))
	all = append(all, attrs...)
	if o.key {
		all = append(all, slog.String(keyKey, printable(rule.Key)))
	}
	if err != nil {
		all = append(all, slog.String("error", o.textOf(err, rule.Key)))
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		all = append(all, slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	if dropped > 0 {
		all = append(all, slog.Int("dropped", dropped))
	}
	logger.LogAttrs(ctx, level, text, all...)
}

// textOf returns an error's text, without the key unless keys may be shown. Most texts do not
// contain the key. A key of less than four bytes may be a part of any word, so such a key is not
// replaced.
func (o *observer) textOf(err error, key string) string {
	if e, ok := errors.AsType[*locker.Error](err); ok {
		err = e.Err // without the key
	}
	text := printable(err.Error())
	if o.key || len(key) < 4 {
		return text
	}
	quoted := strconv.Quote(key)
	for _, shown := range []string{quoted[1 : len(quoted)-1], printable(key)} {
		text = strings.ReplaceAll(text, shown, "[key]")
	}
	return text
}

// slog returns the logger of WithLogger, or else the present default of package slog.
func (o *observer) slog() *slog.Logger {
	if o.logger != nil {
		return o.logger
	}
	return slog.Default()
}
