package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
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
		rows, err := a.written(ctx)
		a.before = rows
		return err
	case a.strategy != VerifyLast:
		return a.claimAll(ctx, a.id)
	case a.dialect != SQLite: // where it would take the only write lock; it is noted last there
		return a.note(ctx, a.id)
	}
	return nil
}

// leave does what comes last before the COMMIT.
func (a *attempt) leave(ctx context.Context) error {
	if a.verifies {
		return a.unwritten(ctx)
	}
	if a.strategy == VerifyLast && a.dialect == SQLite {
		if err := a.note(ctx, a.id); err != nil {
			if a.dialect.duplicate(err) {
				return errGivenUp
			}
			return err
		}
	} else if err := a.intact(ctx); err != nil {
		return err
	}
	if a.strategy == VerifyLast {
		for _, l := range a.leases {
			if err := a.verify(ctx, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// intact refuses to go on with a transaction that has ended without a word, see [Dialect.ended]: the operation was noted in it,
// and is not there any more. What was written since is in no transaction that has claimed anything.
func (a *attempt) intact(ctx context.Context) error {
	if a.dialect == Postgres {
		return nil
	}
	var noted int
	if err := a.tx.Row(ctx, a.stmts["recall"], []any{a.id}, &noted); err != nil {
		return err
	}
	if noted == 0 {
		return errEnded
	}
	return nil
}

var (
	errEnded   = errors.New("sqllock: the transaction was ended by the error of a statement, and the function went on; return such errors from it")
	errGivenUp = errors.New("sqllock: Resolve was asked about the operation before it was done, and has answered that it is not; so it must not be any more")
)

// written is how many rows the connection has changed so far, where the database does not refuse to write in a transaction that
// only reads; 0 otherwise.
func (a *attempt) written(ctx context.Context) (rows int64, err error) {
	if query := a.stmts["written"]; query != "" {
		err = a.tx.Row(ctx, query, nil, &rows)
	}
	return rows, err
}

// unwritten refuses a transaction that has written, and has claimed nothing.
func (a *attempt) unwritten(ctx context.Context) error {
	rows, err := a.written(ctx)
	if err != nil {
		return err
	}
	if rows != a.before {
		return a.fail(a.leases[0], fmt.Errorf("%w: the transaction has written, though its lease is Shared or WithTxOptions says ReadOnly", locker.ErrUnsupported), 0)
	}
	return nil
}

// claimAhead claims in a transaction of its own, so that no row of the table stays locked while fn runs.
func (a *attempt) claimAhead(ctx context.Context) (again bool, err error) {
	ends, end := context.WithCancelCause(ctx)
	defer end(nil)
	ahead := &attempt{call: a.call, leases: a.leases}
	if ahead.tx, err = a.begin(ends, nil, a.idleLimit()); err != nil {
		return a.dialect.passing(err), err
	}
	if err := ahead.claimAll(ctx, ""); err != nil {
		ahead.rollback(ctx)
		return a.dialect.passing(err), err
	}
	// If nobody knows whether this was committed, it only has to be done again: the same owner may claim twice.
	if err := ahead.sendCommit(ctx, end); err != nil {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		return true, err
	}
	return false, nil
}

// claimAll puts the fence of every lease into its resource's row, in the order of their keys, or finds out why it must not; and it
// notes the operation id under the first, "" notes none.
func (a *attempt) claimAll(ctx context.Context, id string) error {
	if a.dialect == Postgres {
		return a.claimAtOnce(ctx, id)
	}
	for _, l := range a.leases {
		key, fence := l.Key(), int64(l.Fence())
		args := []any{key, fence, a.owner}
		if a.dialect == MySQL {
			args = append(args, fence, a.owner, fence, fence)
		}
		if err := a.tx.Exec(ctx, a.stmts["claim"], args...); err != nil {
			return err
		}
	}
	// Not before all rows are ours: InnoDB takes its snapshot with the first plain SELECT, and what is read in it must be what
	// those whom the claims have waited for have committed.
	for _, l := range a.leases {
		seen, owner, err := a.look(ctx, l.Key())
		if err != nil {
			return err
		}
		if seen != int64(l.Fence()) || owner != a.owner {
			return a.refuse(ctx, l)
		}
	}
	if id == "" {
		return nil
	}
	return a.note(ctx, id)
}

// claimAtOnce is claimAll on PostgreSQL, where one statement for each lease does all of it.
func (a *attempt) claimAtOnce(ctx context.Context, id string) error {
	for _, l := range a.leases {
		var claimed int
		if err := a.tx.Row(ctx, a.stmts["claim"], []any{l.Key(), int64(l.Fence()), a.owner, id, a.idleMillis()}, &claimed); err != nil {
			return err
		}
		if claimed == 0 {
			return a.refuse(ctx, l)
		}
		id = ""
	}
	return nil
}

// note writes the operation into the ledger: one row for the transaction, under its first resource.
func (a *attempt) note(ctx context.Context, id string) error {
	args := []any{id, a.leases[0].Key(), int64(a.leases[0].Fence())}
	if a.dialect == Postgres {
		args = append(args, a.idleMillis())
	}
	return a.tx.Exec(ctx, a.stmts["note"], args...)
}

// verify finds out whether the claim of l still stands, and keeps others from claiming until the transaction ends.
func (a *attempt) verify(ctx context.Context, l *locker.Lease) error {
	var holds int
	if err := a.tx.Row(ctx, a.stmts["verify"], []any{l.Key(), int64(l.Fence()), a.owner}, &holds); err != nil {
		return err
	}
	if holds == 0 {
		return a.refuse(ctx, l)
	}
	return nil
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
		if uint64(seen) == l.Fence() {
			why = errSharedFence
		}
	}
	return a.fail(l, why, uint64(seen))
}

// errSharedFence: the same fence was claimed by another owner.
var errSharedFence = fmt.Errorf("%w, or another process works under the same lease: then give both the same WithOwner", ErrFenceRegressed)

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
