package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// enter runs the first statements of the transaction. They claim or compare the fences, write the
// operation into the ledger, and mark the transaction, so that the proof can later show that it is
// still open. Then enter writes the caller's operation.
func (a *attempt) enter(ctx context.Context) error {
	defer a.idle.touch()
	var err error
	switch a.dialect {
	case Postgres:
		err = a.enterPostgres(ctx)
	case MySQL:
		err = a.enterMySQL(ctx)
	default:
		err = a.enterSQLite(ctx)
	}
	if err == nil && a.reads && a.borrowed {
		err = a.checkReadOnly(ctx)
	}
	if err == nil && a.hasOperation {
		err = a.writeOperation(ctx)
	}
	return err
}

// writeOperation writes the caller's operation, or returns locker.ErrDone if the operation is done.
// If another open transaction has written the operation, writeOperation waits for that transaction.
func (a *attempt) writeOperation(ctx context.Context) error {
	resource, fence := a.subject()
	_, err := a.tx.Exec(ctx, a.stmts["operation"], a.operation, resource, int64(fence))
	if a.dialect.isDuplicate(err) {
		return a.newError(fmt.Errorf("%w: operation %q", locker.ErrDone, a.operation))
	}
	return err
}

// split returns the leases that are claimed, and the Shared leases, whose resources are only locked
// against claims.
func split(leases []*locker.Lease) (claims, shares []*locker.Lease) {
	for _, l := range leases {
		if l.Mode() == locker.Shared {
			shares = append(shares, l)
		} else {
			claims = append(claims, l)
		}
	}
	return claims, shares
}

// isShared reports whether the attempt only locks the resource of l against claims.
func (a *attempt) isShared(l *locker.Lease) bool { return slices.Contains(a.shares, l) }

// noteStep returns the step that writes the operation into the ledger. The transaction has one row
// in the ledger, under its first resource.
func (a *attempt) noteStep() step {
	resource, fence := a.subject()
	return step{"note", []any{a.id, resource, max(int64(fence), 1)}} // 0 would mean that the operation was given up
}

// checkStanding returns an error if err is not nil, or if the database has accepted fewer claims
// than want.
func (a *attempt) checkStanding(ctx context.Context, claims, want int, err error) error {
	if err == nil && claims < want {
		return a.claimError(ctx)
	}
	return err
}

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
		claims := !a.reads && !a.isShared(l)
		switch fence := int64(l.Fence()); {
		case seen < fence, seen == fence && (owner == process() || !claims):
			continue // this claim stands
		}
		why := ErrStaleFence
		if time.Until(l.Expires()) > 0 && l.Context().Err() == nil && holds(ctx, l) {
			why = ErrFenceRegressed
		}
		return &Error{Resource: l.Key(), Fence: l.Fence(), Seen: uint64(seen), Err: why}
	}
	return a.newError(ErrStaleFence)
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
