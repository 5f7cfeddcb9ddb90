package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// claimError returns the error of the first claim that the database has refused or that a newer
// claim has replaced. If this process still holds the lease after it has seen a larger fence, no
// later holder can have been granted the key. So the larger fence is from an earlier lease, and the
// lock server has lost data. If this process does not hold the lease any more, or cannot find out,
// it counts as too late.
func (a *attempt) claimError(ctx context.Context) error {
	for _, l := range a.leases {
		seen, owner, err := a.newestClaim(ctx, l.Key())
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		claims := !a.reads && l.Mode() != locker.Shared
		switch fence := int64(l.Fence()); {
		case seen < fence, seen == fence && (owner == process() || !claims):
			continue // this claim stands
		}
		why := ErrStaleFence
		if time.Until(l.Expires()) > 0 && l.Context().Err() == nil && holds(ctx, l) {
			why = ErrFenceRegressed
		}
		return a.newError(l, why, uint64(seen))
	}
	return a.newError(a.leases[0], ErrStaleFence, 0)
}

// holds reports whether the lock server still has the lease l. After a failover, another holder may
// have the key, and this process may not have noticed that yet.
func holds(ctx context.Context, l *locker.Lease) bool {
	info, err := l.Inspect(ctx)
	return err == nil && info.Held && !info.Foreign && info.Fence <= l.Fence()
}

// newestClaimIn returns the newest claim of the resource key, which it reads in tx.
func (b *base) newestClaimIn(ctx context.Context, tx Transaction, key string) (fence int64, owner string, err error) {
	err = tx.Row(ctx, b.stmts["look"], []any{key}, &fence, &owner)
	return fence, owner, err
}

// newestClaim calls newestClaimIn with the attempt's own transaction.
func (a *attempt) newestClaim(ctx context.Context, key string) (fence int64, owner string, err error) {
	return a.newestClaimIn(ctx, a.tx, key)
}
