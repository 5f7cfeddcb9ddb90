package locker

import (
	"context"
)

type leaseKey struct{}

// heldList is a linked list of the leases in a context, the innermost first. It also has an element
// for each RunAll that was still taking its leases when the context was made.
type heldList struct {
	lease *Lease
	takes *takeState // exactly one of takes and lease is set
	outer *heldList
}

// heldIn returns the innermost element of the list in ctx, or nil when ctx has no list.
func heldIn(ctx context.Context) *heldList {
	h, _ := ctx.Value(leaseKey{}).(*heldList)
	return h
}

// withLease returns ctx with l as the innermost lease of its list.
func withLease(ctx context.Context, l *Lease) context.Context {
	return context.WithValue(ctx, leaseKey{}, &heldList{lease: l, outer: heldIn(ctx)})
}

// FromContext returns the innermost lease from which ctx was derived: the lease of the [Run] around
// the caller. Inside a [RunAll], FromContext returns the lease whose key sorts last.
func FromContext(ctx context.Context) (*Lease, bool) {
	for h := heldIn(ctx); h != nil; h = h.outer {
		if h.lease != nil {
			return h.lease, true
		}
	}
	return nil, false
}

// LeasesFromContext returns all leases from which ctx was derived, the innermost first: the lease
// of each [Run] around the caller, and all leases of a [RunAll]. It also returns leases that have
// been released or lost since.
func LeasesFromContext(ctx context.Context) []*Lease {
	var all []*Lease
	for h := heldIn(ctx); h != nil; h = h.outer {
		if h.lease != nil {
			all = append(all, h.lease)
		}
	}
	return all
}

// Detach returns a context with the values of ctx, but without its leases, its deadline and its
// cancellation. Use it for a goroutine that outlives the [Run] that started it. Such a goroutine
// does not count as a holder. So when this goroutine acquires the same key, it waits for the
// holder, and is not refused as a self-deadlock.
func Detach(ctx context.Context) context.Context {
	return context.WithValue(context.WithoutCancel(ctx), leaseKey{}, (*heldList)(nil))
}
