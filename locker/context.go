package locker

import (
	"context"
	"time"
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

// until is a context that says when it is too late, and has no timer that ends it: for calls that the Engine abandons by
// itself. Go's sockets and go-redis ask for the deadline. It costs a quarter of context.WithTimeout, which also is the
// larger part of what a release costs without a server.
type until struct {
	context.Context // never done
	deadline        time.Time
}

func (u until) Deadline() (deadline time.Time, ok bool) { return u.deadline, true }
