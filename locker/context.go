package locker

import (
	"context"
	"time"
)

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

// until is a context that says when it is too late, and has no timer that ends it: for calls that the Engine abandons by
// itself. Go's sockets and go-redis ask for the deadline. It costs a quarter of context.WithTimeout, which also is the
// larger part of what a release costs without a server.
type until struct {
	context.Context // never done
	deadline        time.Time
}

func (u until) Deadline() (deadline time.Time, ok bool) { return u.deadline, true }
