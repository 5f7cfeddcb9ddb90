package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// refuse says why a claim does not stand. If the lease is still ours after the larger fence was
// seen, nobody can have been granted the key in between, so that fence is older, and the lock
// server has gone back. Otherwise we come too late.
func (a *attempt) refuse(ctx context.Context) error {
	for _, l := range a.leases {
		seen, owner, err := a.look(ctx, l.Key())
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		claims := !a.reads && l.Mode() != locker.Shared
		switch fence := int64(l.Fence()); {
		case seen < fence && (a.strategy == ClaimFirst || !claims):
			continue // it was not this one
		case seen == fence && (owner == a.owner || !claims):
			continue
		}
		why := ErrStaleFence
		if time.Until(l.Expires()) > 0 && l.Context().Err() == nil && a.holds(ctx, l) {
			why = ErrFenceRegressed
			if uint64(seen) == l.Fence() {
				why = errSharedFence
			}
		}
		return a.fail(l, why, uint64(seen))
	}
	return a.fail(a.leases[0], ErrStaleFence, 0)
}

// errSharedFence: the same fence was claimed by another owner.
var errSharedFence = fmt.Errorf(
	"%w, or another process works under the same lease: then give both the same WithOwner", ErrFenceRegressed)

// inspector is a Locker that can say who holds a key.
type inspector interface {
	Inspect(ctx context.Context, key string) (locker.Info, error)
}

// holds asks the lock server whether it still knows the lease: after a failover the key may have
// another holder, and this process not know it yet.
func (a *attempt) holds(ctx context.Context, l *locker.Lease) bool {
	var info locker.Info
	var err error
	if i, ok := a.locker.(inspector); ok {
		info, err = i.Inspect(ctx, l.Key())
	} else {
		info, err = l.Inspect(ctx)
	}
	return err == nil && info.Held && !info.Foreign && info.Fence <= l.Fence()
}

// lookIn returns the newest claim of a resource.
func (c *call) lookIn(ctx context.Context, tx Transaction, key string) (fence int64, owner string, err error) {
	err = tx.Row(ctx, c.stmts["look"], []any{key}, &fence, &owner)
	return fence, owner, err
}

func (a *attempt) look(ctx context.Context, key string) (fence int64, owner string, err error) {
	return a.lookIn(ctx, a.tx, key)
}
