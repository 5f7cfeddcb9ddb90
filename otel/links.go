package otellock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/latchkit/latchkit/locker"
)

// Traceparent returns the span in ctx as a text, if the span is sampled. Waiters link to this span.
func (o *observer) Traceparent(ctx context.Context) string {
	span := trace.SpanContextFromContext(ctx)
	if !o.links || !span.IsSampled() || !span.IsValid() {
		return ""
	}
	text := [...]byte{2: '-', 35: '-', 52: '-', 54: '1'}
	text[0], text[1], text[53] = '0', '0', '0'
	traceID, spanID := span.TraceID(), span.SpanID()
	hex.Encode(text[3:], traceID[:])
	hex.Encode(text[36:], spanID[:])
	return string(text[:])
}

// parse returns the span that traceparent names. traceparent is a text that Traceparent has
// returned, in this process or in another process. For any other text, parse returns false, because
// other programs can write to the server's keys.
func parse(traceparent string) (trace.SpanContext, bool) {
	parts := strings.Split(traceparent, "-")
	if len(parts) != 4 || parts[0] != "00" {
		return trace.SpanContext{}, false
	}
	traceID, err1 := trace.TraceIDFromHex(parts[1])
	spanID, err2 := trace.SpanIDFromHex(parts[2])
	if err1 != nil || err2 != nil {
		return trace.SpanContext{}, false
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: spanID, TraceFlags: trace.FlagsSampled, Remote: true,
	}), true
}

// link adds to span a link to the span of peer, if that span is known. role is the link's role.
func link(span trace.Span, role string, peer locker.Peer) {
	if peer.Traceparent == "" {
		return
	}
	other, ok := parse(peer.Traceparent)
	if !ok {
		return
	}
	attrs := []attribute.KeyValue{attribute.String(roleKey, role)}
	if peer.Fence != 0 {
		attrs = append(attrs, attribute.Int64(fenceKey, int64(peer.Fence)))
	}
	span.AddLink(trace.Link{SpanContext: other, Attributes: attrs})
}

// sameTrace reports whether the holder's span belongs to the trace of ctx. If it does, the caller
// may be waiting for itself.
func sameTrace(ctx context.Context, holder locker.Peer) bool {
	if holder.Traceparent == "" {
		return false
	}
	other, ok := parse(holder.Traceparent)
	return ok && other.TraceID() == trace.SpanContextFromContext(ctx).TraceID()
}

// hash returns a salted hash of key. Equal keys have equal hashes. A reader who does not know
// the salt cannot find the key by trying keys.
func (o *observer) hash(key string) string {
	sum := sha256.Sum256(append(slices.Clip(o.salt), key...))
	return hex.EncodeToString(sum[:8])
}
