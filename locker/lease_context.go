package locker

import (
	"context"
)

type leaseKey struct{}

// held is a list of the leases in a context, the innermost first. Between them stand the RunAlls that were taking theirs.
type held struct {
	lease *Lease
	takes *takes // nil, or lease is
	outer *held
}

// heldIn is what ctx was derived from; nil when there is no lease.
func heldIn(ctx context.Context) *held {
	h, _ := ctx.Value(leaseKey{}).(*held)
	return h
}

func withLease(ctx context.Context, l *Lease) context.Context {
	return context.WithValue(ctx, leaseKey{}, &held{lease: l, outer: heldIn(ctx)})
}

// FromContext returns the innermost lease that ctx was derived from: the one of the [Run] around the caller. Of a [RunAll]
// it is the one whose key sorts last.
func FromContext(ctx context.Context) (*Lease, bool) {
	for h := heldIn(ctx); h != nil; h = h.outer {
		if h.lease != nil {
			return h.lease, true
		}
	}
	return nil, false
}

// LeasesFromContext returns all leases that ctx was derived from, the innermost first: those of each [Run] around the caller,
// and all of a [RunAll]. What was released or lost since is among them.
func LeasesFromContext(ctx context.Context) []*Lease {
	var all []*Lease
	for h := heldIn(ctx); h != nil; h = h.outer {
		if h.lease != nil {
			all = append(all, h.lease)
		}
	}
	return all
}

// Detach returns a context with the values of ctx, but without its leases, its deadline and its cancellation. It is for a
// goroutine that outlives the [Run] that started it: the goroutine is no holder, so its own Acquire of the same key waits like
// that of a stranger, instead of being refused as a self-deadlock.
func Detach(ctx context.Context) context.Context {
	return context.WithValue(context.WithoutCancel(ctx), leaseKey{}, (*held)(nil))
}
