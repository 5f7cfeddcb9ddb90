package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// enter does what comes first in the transaction.
func (a *attempt) enter(ctx context.Context) error {
	switch {
	case a.verifies:
		for _, l := range a.leases {
			if err := a.compare(ctx, l); err != nil {
				return err
			}
		}
	case a.strategy == VerifyLast:
		if a.dialect == Postgres {
			var set string
			return a.tx.Row(ctx, a.stmts["limit"], []any{a.idleMillis()}, &set)
		}
	default:
		return a.claimAll(ctx, a.id)
	}
	return nil
}

// leave does what comes last before the COMMIT.
func (a *attempt) leave(ctx context.Context) error {
	if a.verifies || a.strategy != VerifyLast {
		return nil
	}
	id := a.id
	for _, l := range a.leases {
		if err := a.verify(ctx, l, id); err != nil {
			return err
		}
		id = "" // one row in the ledger for the transaction, under its first resource
	}
	return nil
}

// claimAhead claims in a transaction of its own, so that no row of the table stays locked while fn runs.
func (a *attempt) claimAhead(ctx, ends context.Context) (again bool, err error) {
	ahead := &attempt{call: a.call, leases: a.leases}
	if ahead.tx, err = a.begin(ends, nil, a.idleLimit()); err != nil {
		return a.dialect.passing(err), err
	}
	if err := ahead.claimAll(ctx, ""); err != nil {
		ahead.rollback(ctx)
		return a.dialect.passing(err), err
	}
	// If nobody knows whether this was committed, it only has to be done again: the same owner may claim twice.
	if err := ahead.tx.Commit(ctx); err != nil {
		return !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded), err
	}
	return false, nil
}

// claimAll claims for every lease, in the order of their keys.
func (a *attempt) claimAll(ctx context.Context, id string) error {
	for _, l := range a.leases {
		if err := a.claim(ctx, l, id); err != nil {
			return err
		}
		id = ""
	}
	return nil
}

// claim puts l's fence into its resource's row, or finds out why it must not.
func (a *attempt) claim(ctx context.Context, l *locker.Lease, id string) error {
	key, fence := l.Key(), int64(l.Fence())
	if a.dialect == Postgres {
		var claimed int
		if err := a.tx.Row(ctx, a.stmts["claim"], []any{key, fence, a.owner, id, a.idleMillis()}, &claimed); err != nil {
			return err
		}
		if claimed == 0 {
			return a.refuse(ctx, l)
		}
		return nil
	}
	args := []any{key, fence, a.owner}
	if a.dialect == MySQL {
		args = append(args, fence, a.owner, fence, fence)
	}
	if err := a.tx.Exec(ctx, a.stmts["claim"], args...); err != nil {
		return err
	}
	seen, owner, err := a.look(ctx, key)
	if err != nil {
		return err
	}
	if seen != fence || owner != a.owner {
		return a.refuse(ctx, l)
	}
	return a.note(ctx, key, fence, id)
}

// verify finds out whether the claim of l still stands, and keeps others from claiming until the transaction ends.
func (a *attempt) verify(ctx context.Context, l *locker.Lease, id string) error {
	key, fence := l.Key(), int64(l.Fence())
	args := []any{key, fence, a.owner}
	if a.dialect == Postgres {
		args = append(args, id)
	} else if err := a.note(ctx, key, fence, id); err != nil {
		return err
	}
	var holds int
	if err := a.tx.Row(ctx, a.stmts["verify"], args, &holds); err != nil {
		return err
	}
	if holds == 0 {
		return a.refuse(ctx, l)
	}
	return nil
}

// note writes the operation into the ledger.
func (a *attempt) note(ctx context.Context, key string, fence int64, id string) error {
	if id == "" {
		return nil
	}
	return a.tx.Exec(ctx, a.stmts["note"], id, key, fence)
}

// compare refuses l if a larger fence was claimed.
func (a *attempt) compare(ctx context.Context, l *locker.Lease) error {
	seen, _, err := a.look(ctx, l.Key())
	if err == nil && seen > int64(l.Fence()) {
		return a.refuse(ctx, l)
	}
	return err
}

func (a *attempt) look(ctx context.Context, key string) (fence int64, owner string, err error) {
	err = a.tx.Row(ctx, a.stmts["look"], []any{key}, &fence, &owner)
	return fence, owner, err
}

// refuse says why a claim does not stand. If the lease is still ours after the larger fence was seen, nobody can have got
// it in between, so that fence is older, and the lock server has gone back. Otherwise it is we who come too late.
func (a *attempt) refuse(ctx context.Context, l *locker.Lease) error {
	seen, _, err := a.look(ctx, l.Key())
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	why := ErrStaleFence
	if time.Until(l.Expires()) > 0 && l.Context().Err() == nil && a.holds(ctx, l) {
		why = ErrFenceRegressed
	}
	return a.fail(l, why, uint64(seen))
}

// inspector is a Locker that can say who holds a key.
type inspector interface {
	Inspect(ctx context.Context, key string) (locker.Info, error)
}

// holds asks the lock server, if the Locker can: after a failover somebody else may hold the key, and we not know it yet.
func (a *attempt) holds(ctx context.Context, l *locker.Lease) bool {
	i, ok := a.locker.(inspector)
	if !ok {
		return true
	}
	info, err := i.Inspect(ctx, l.Key())
	return err == nil && info.Held && !info.Foreign && info.Fence <= l.Fence()
}
