package sqllock

import (
	"context"
	"fmt"

	"github.com/latchkit/latchkit/locker"
)

// enter runs the first statements of the transaction. They claim or compare the fences, write the
// operation into the ledger, and mark the transaction, so that the proof can later show that it is
// still open. Then enter writes the caller's operation.
func (a *attempt) enter(ctx context.Context) error {
	defer a.idle.touch()
	enter := a.enterSQLite
	switch a.dialect {
	case Postgres:
		enter = a.enterPostgres
	case MySQL:
		enter = a.enterMySQL
	}
	if err := enter(ctx); err != nil || !a.hasOperation {
		return err
	}
	return a.writeOperation(ctx)
}

// writeOperation writes the caller's operation, or returns locker.ErrDone if the operation is done.
// If another open transaction has written the operation, writeOperation waits for that transaction.
func (a *attempt) writeOperation(ctx context.Context) error {
	first := a.leases[0]
	_, err := a.tx.Exec(ctx, a.stmts["operation"], a.operation, first.Key(), int64(first.Fence()))
	if a.dialect.isDuplicate(err) {
		return a.newError(first, fmt.Errorf("%w: operation %q", locker.ErrDone, a.operation), 0)
	}
	return err
}

// split returns the leases that are claimed, and the Shared leases, whose resources are only locked
// against claims.
func (a *attempt) split() (claims, shares []*locker.Lease) {
	for _, l := range a.leases {
		if l.Mode() == locker.Shared {
			shares = append(shares, l)
		} else {
			claims = append(claims, l)
		}
	}
	return claims, shares
}

// noteStep returns the step that writes the operation into the ledger. The transaction has one row
// in the ledger, under its first resource.
func (a *attempt) noteStep() step {
	return step{"note", []any{a.id, a.leases[0].Key(), int64(a.leases[0].Fence())}}
}

// checkStanding returns an error if err is not nil, or if the database has accepted fewer claims
// than want.
func (a *attempt) checkStanding(ctx context.Context, claims, want int, err error) error {
	if err == nil && claims < want {
		return a.claimError(ctx)
	}
	return err
}
