package sqllock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/latchkit/latchkit/locker"
)

func keysOf(leases []*locker.Lease) (keys []string) {
	for _, l := range leases {
		keys = append(keys, l.Key())
	}
	return keys
}

// run acquires the locks of rules, runs the transaction, and releases the locks.
func (c *call) run(ctx context.Context, rules []locker.Rule) error {
	outer := locker.LeasesFromContext(ctx)
	rules, mine := withNoWait(rules, outer)
	committed := false
	transact := func(ctx context.Context) error {
		leases := locker.LeasesFromContext(ctx)
		leases = leases[:len(leases)-len(outer)]
		err := c.transact(ctx, sorted(leases))
		committed = err == nil
		return err
	}
	began := false
	locked := func(ctx context.Context) error { began = true; return transact(ctx) }
	var err error
	if len(rules) == 1 {
		err = locker.Run(ctx, c.locker, rules[0], locked)
	} else {
		err = locker.RunAll(ctx, c.locker, rules, locked)
	}
	switch {
	case committed: // Do returns nil even if a lock was lost after the commit
		return nil
	case !began && mine != "" && errors.Is(err, locker.ErrBusy):
		return &locker.Error{Op: opTransact, Key: mine, Err: fmt.Errorf(
			"%w: the caller's context holds this key already, so Do would wait for itself; use Within", locker.ErrUnsupported)}
	}
	return err
}

// withNoWait returns the rules, with NoWait for each key that the caller's own context holds
// already. A reentrant Locker grants such a key at once. No other Locker can ever grant such a key.
// mine is one of the keys that the caller's context holds, or "".
func withNoWait(rules []locker.Rule, outer []*locker.Lease) (_ []locker.Rule, mine string) {
	rules = slices.Clone(rules)
	for i := range rules {
		for _, l := range outer {
			if l.Key() == rules[i].Key && l.Context().Err() == nil {
				rules[i].Wait, mine = locker.NoWait, l.Key()
			}
		}
	}
	return rules, mine
}

// within runs the transaction under leases, which the context of the caller has.
func (c *call) within(ctx context.Context, leases []*locker.Lease) error {
	err := c.transact(ctx, leases)
	if err == nil {
		return nil
	}
	for _, l := range leases {
		if l.Context().Err() != nil {
			if cause := context.Cause(l.Context()); !errors.Is(err, cause) {
				err = errors.Join(err, cause)
			}
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
		return nil, fmt.Errorf("sqllock: %w; call this inside of locker.Run, or use Do", locker.ErrUnguarded)
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
	return sorted(leases), nil
}

// sorted returns leases in the order of their keys.
func sorted(leases []*locker.Lease) []*locker.Lease {
	slices.SortFunc(leases, func(a, b *locker.Lease) int { return strings.Compare(a.Key(), b.Key()) })
	return leases
}
