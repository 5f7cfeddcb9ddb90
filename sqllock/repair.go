package sqllock

import (
	"context"
	"fmt"

	"github.com/latchkit/latchkit/locker"
)

// Repair makes the next fence of each key larger than the fence in the database, and returns how
// many keys it has repaired. Call it after ErrFenceRegressed. The present holder of the lock still
// has a small fence, so its claims are still refused. The next holder's claim succeeds. Repair
// never lowers a fence, so an unnecessary call does no harm.
//
// Without keys, Repair repairs every resource with a fence in the database. Use this after the lock
// server was restored from an old snapshot, or after its clock was set back. Purge may have removed
// the fence of a resource, and the floor still refuses its claims: name the key of such a resource,
// or of one that was never claimed. After an error, call Repair again.
//
// If the Handle's Locker cannot raise fences, the error is locker.ErrUnsupported. *locker.Engine
// can raise fences.
func (h *Handle[T]) Repair(ctx context.Context, keys ...string) (repaired int, err error) {
	l, ok := h.locker.(raiser)
	if !ok {
		return 0, fmt.Errorf("%w: sqllock: Repair: a Locker of the type %T cannot raise fences; give New a *locker.Engine",
			locker.ErrUnsupported, h.locker)
	}
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return 0, err
		}
	}
	for last := ""; ; {
		var page []claimedFence
		if err := h.persistTx(ctx, func(tx Transaction) error {
			page, err = h.fences(ctx, tx, keys, last)
			return err
		}); err != nil {
			return repaired, err
		}
		for _, next := range page {
			if err := l.RaiseFence(ctx, next.resource, uint64(next.fence)); err != nil {
				return repaired, err
			}
			repaired++
		}
		if len(keys) > 0 || len(page) == 0 {
			return repaired, nil
		}
		last = page[len(page)-1].resource
	}
}

// raiser is a Locker that can raise the next fence of a key.
type raiser interface {
	RaiseFence(ctx context.Context, key string, atLeast uint64) error
}

// claimedFence is a resource and its fence in the database.
type claimedFence struct {
	resource string
	fence    int64
}

// fencesPerTx is how many fences are read in one transaction.
const fencesPerTx = 1000

// fences returns the fences of keys, or without keys the next fences: those of the resources that
// follow the resource last. Where the floor is larger than a fence, fences returns the floor.
func (b *base) fences(ctx context.Context, tx Transaction, keys []string, last string) (page []claimedFence, err error) {
	for _, key := range keys {
		fence, _, err := b.newestClaim(ctx, tx, key)
		if err != nil {
			return nil, err
		}
		if fence > 0 {
			page = append(page, claimedFence{key, fence})
		}
	}
	if len(keys) > 0 {
		return page, nil
	}
	floor, _, err := b.newestClaim(ctx, tx, "")
	if err != nil {
		return nil, err
	}
	for len(page) < fencesPerTx {
		next := claimedFence{}
		if err := tx.Row(ctx, b.stmts["fence_next"], []any{last}, &next.resource, &next.fence); err != nil {
			return nil, err
		}
		if next.resource == "" {
			break
		}
		last, next.fence = next.resource, max(next.fence, floor)
		page = append(page, next)
	}
	return page, nil
}
