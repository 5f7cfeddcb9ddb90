package locker

import "context"

type leaseKey struct{}

// held is a list of the leases in a context, the innermost first.
type held struct {
	lease *Lease
	outer *held
}

func withLease(ctx context.Context, l *Lease) context.Context {
	outer, _ := ctx.Value(leaseKey{}).(*held)
	return context.WithValue(ctx, leaseKey{}, &held{l, outer})
}

// FromContext returns the innermost lease that ctx was derived from: the one of the [Run] around the caller.
func FromContext(ctx context.Context) (*Lease, bool) {
	h, ok := ctx.Value(leaseKey{}).(*held)
	if !ok {
		return nil, false
	}
	return h.lease, true
}

// LeasesFromContext returns all leases that ctx was derived from, the innermost first.
func LeasesFromContext(ctx context.Context) []*Lease {
	var all []*Lease
	h, _ := ctx.Value(leaseKey{}).(*held)
	for ; h != nil; h = h.outer {
		all = append(all, h.lease)
	}
	return all
}
