package sqllock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

func keysOf(leases []*locker.Lease) (keys []string) {
	for _, l := range leases {
		keys = append(keys, l.Key())
	}
	return keys
}

// run acquires the locks of rules, runs the transaction, and releases the locks.
func (c *call) run(ctx context.Context, rules []locker.Rule) error {
	outer := len(locker.LeasesFromContext(ctx))
	committed := false
	transact := func(ctx context.Context) error {
		leases := locker.LeasesFromContext(ctx)
		err := c.transact(ctx, sorted(leases[:len(leases)-outer]))
		committed = err == nil
		return err
	}
	var err error
	if len(rules) == 1 {
		err = locker.Run(ctx, c.locker, rules[0], transact)
	} else {
		err = locker.RunAll(ctx, c.locker, rules, transact)
	}
	if committed { // Do returns nil even if a lock was lost after the commit
		return nil
	}
	return err
}

// within runs the transaction under leases, which the context of the caller has.
func (c *call) within(ctx context.Context, leases []*locker.Lease) error {
	err := c.transact(ctx, leases)
	if err == nil {
		return nil
	}
	for _, l := range leases {
		if cause := context.Cause(l.Context()); cause != nil && !errors.Is(err, cause) {
			err = errors.Join(err, cause)
		}
	}
	return err
}

// firstEnd returns why one of the leases has ended, or nil.
func firstEnd(leases []*locker.Lease) error {
	for _, l := range leases {
		if cause := context.Cause(l.Context()); cause != nil {
			return cause
		}
	}
	return nil
}

// leasesOf returns those leases of ctx that have the keys, or all leases of ctx if keys is nil, in
// the order of their keys. If ctx holds a key several times, as NewReentrant allows, leasesOf
// returns the innermost lease.
func leasesOf(ctx context.Context, keys []string) (leases []*locker.Lease, err error) {
	all := locker.LeasesFromContext(ctx)
	if len(all) == 0 {
		return nil, fmt.Errorf("sqllock: %w; give the context of locker.Run or of a guarded request (of Gin: c.Request.Context(), not c); where no lock is held, use Do", locker.ErrUnguarded)
	}
	byKey := make(map[string]*locker.Lease)
	var released error
	for _, l := range all {
		if cause := context.Cause(l.Context()); errors.Is(cause, locker.ErrReleased) {
			released = cause
			continue
		}
		if byKey[l.Key()] == nil && (keys == nil || slices.Contains(keys, l.Key())) {
			byKey[l.Key()] = l
			leases = append(leases, l)
		}
	}
	for _, key := range keys {
		if byKey[key] == nil {
			return nil, fmt.Errorf("sqllock: %w of the key %q; call this inside of locker.Run with that key", locker.ErrUnguarded, key)
		}
	}
	if len(leases) == 0 {
		return nil, released
	}
	leases = sorted(leases)
	// The lease of an Idempotency-Key comes last: the subject is what the request changes.
	if attempt, ok := idempotency.FromContext(ctx); ok {
		if i := slices.Index(leases, attempt.Lease()); i >= 0 {
			leases = append(slices.Delete(leases, i, i+1), attempt.Lease())
		}
	}
	return leases, nil
}

// sorted returns leases in the order of their keys.
func sorted(leases []*locker.Lease) []*locker.Lease {
	slices.SortFunc(leases, func(a, b *locker.Lease) int { return strings.Compare(a.Key(), b.Key()) })
	return leases
}
