package sqllock

import (
	"context"

	"github.com/latchkit/latchkit/locker"
)

func (a *attempt) enterSQLite(ctx context.Context) (err error) {
	if _, err := a.tx.Exec(ctx, a.stmts["open"]); err != nil {
		return err
	}
	if a.reads {
		if err := a.compare(ctx, a.leases); err != nil {
			return err
		}
		a.rowsBefore, err = a.rowsWritten(ctx)
		return err
	}
	if err := a.claimSQLite(ctx); err != nil {
		return err
	}
	s := a.noteStep()
	if _, err := a.tx.Exec(ctx, a.stmts[s.name], s.args...); err != nil {
		return err
	}
	return a.compare(ctx, a.shares) // since the first claim or the note, no other transaction can write
}

func (a *attempt) claimSQLite(ctx context.Context) error {
	for _, l := range a.claims {
		if _, err := a.tx.Exec(ctx, a.stmts["claim"], l.Key(), int64(l.Fence()), process(), int64(l.Fence())); err != nil {
			return err
		}
	}
	for _, l := range a.claims {
		seen, owner, err := a.newestClaim(ctx, l.Key())
		if err != nil {
			return err
		}
		if seen != int64(l.Fence()) || owner != process() {
			return a.claimError(ctx)
		}
	}
	return nil
}

// compare refuses leases if a larger fence was claimed.
func (a *attempt) compare(ctx context.Context, leases []*locker.Lease) error {
	for _, l := range leases {
		seen, _, err := a.newestClaim(ctx, l.Key())
		if err != nil {
			return err
		}
		if seen > int64(l.Fence()) {
			return a.claimError(ctx)
		}
	}
	return nil
}
