package sqllock

import (
	"context"

	"github.com/latchkit/latchkit/locker"
)

// enter runs the first statements of the transaction. They claim or compare the fences, write the
// operation into the ledger, and mark the transaction, so that the proof can later show that it is
// still open.
func (a *attempt) enter(ctx context.Context) error {
	defer a.idle.touch()
	switch a.dialect {
	case Postgres:
		return a.enterPostgres(ctx)
	case MySQL:
		return a.enterMySQL(ctx)
	default:
		return a.enterSQLite(ctx)
	}
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
// than the number want. The parameter claims is the number of accepted claims.
func (a *attempt) checkStanding(ctx context.Context, claims, want int, err error) error {
	if err == nil && claims < want {
		return a.claimError(ctx)
	}
	return err
}
