package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// enter runs the first statements of the transaction. They claim or compare the fences, write the
// operation into the ledger, and mark the transaction, so that the proof can later show that it is
// still open. Then enter writes the caller's operation.
func (a *attempt) enter(ctx context.Context) (err error) {
	if a.dialect == Postgres {
		err = a.enterPostgres(ctx)
	} else {
		err = a.enterStepwise(ctx)
	}
	if err == nil && a.hasOperation {
		err = a.writeOperation(ctx)
	}
	a.idle.since = time.Now()
	return err
}

// enterStepwise is enter for MySQL, MariaDB and SQLite. It locks all rows before it reads any of
// them. InnoDB takes its snapshot with the first plain SELECT. The snapshot must contain everything
// that earlier holders have committed, and each of the locks may have waited for one of these
// holders. On SQLite, the first lock is the only one that writers have.
func (a *attempt) enterStepwise(ctx context.Context) error {
	if a.dialect == MySQL && !a.borrowed {
		if err := a.changeSession(ctx); err != nil {
			return err
		}
	}
	if !a.reads {
		for _, l := range a.leases { // all callers use the order of the keys: two orders could deadlock
			if err := a.lock(ctx, l); err != nil {
				return err
			}
		}
		if err := a.note(ctx); err != nil {
			return err
		}
	}
	for _, l := range a.leases {
		if err := a.check(ctx, l); err != nil {
			return err
		}
	}
	if _, err := a.exec(ctx, "open"); err != nil || !a.reads {
		return err
	}
	var err error
	a.rowsBefore, err = a.rowsWritten(ctx)
	return err
}

// lock claims the resource of l, or locks it against claims if l is Shared. It may wait for an
// earlier holder.
func (a *attempt) lock(ctx context.Context, l *locker.Lease) (err error) {
	key, fence, owner := l.Key(), int64(l.Fence()), process()
	switch {
	case l.Mode() == locker.Shared:
		_, err = a.exec(ctx, "share_row", key)
	case a.dialect == MySQL:
		_, err = a.exec(ctx, "claim", key, fence, owner, fence, owner, fence, fence)
	default:
		_, err = a.exec(ctx, "claim", key, fence, owner, fence)
	}
	return err
}

// check returns an error if the claim of l does not stand, or if a larger fence was claimed. On
// PostgreSQL it also locks the resource of a Shared lease.
func (a *attempt) check(ctx context.Context, l *locker.Lease) error {
	key, fence, n := l.Key(), int64(l.Fence()), 0
	var err error
	switch {
	case a.reads:
		err = a.row(ctx, "compare", []any{key, fence}, &n)
	case l.Mode() == locker.Shared:
		err = a.row(ctx, "share", []any{key, fence, fence}, &n)
	default:
		err = a.row(ctx, "claimed", []any{key, fence, process(), fence}, &n)
	}
	if err == nil && n == 0 {
		return a.claimError(ctx)
	}
	return err
}

// note writes the operation into the ledger. The transaction has one row there, under its first
// resource.
func (a *attempt) note(ctx context.Context) error {
	resource, fence := a.subject()
	_, err := a.exec(ctx, "note", a.id, resource, max(int64(fence), 1)) // 0 would mean that the operation was given up
	return err
}

// writeOperation writes the caller's operation, or returns locker.ErrDone if the operation is done.
// If another open transaction has written the operation, writeOperation waits for that transaction.
func (a *attempt) writeOperation(ctx context.Context) error {
	resource, fence := a.subject()
	_, err := a.exec(ctx, "operation", a.operation, resource, int64(fence))
	if a.dialect.isDuplicate(err) {
		return a.newError(fmt.Errorf("%w: operation %q", locker.ErrDone, a.operation))
	}
	return err
}

// changeSession changes the settings of MySQL's session. Every end of the transaction restores them.
func (a *attempt) changeSession(ctx context.Context) error {
	a.sessionChanged = true
	if s, ok := a.tx.(*standard); ok {
		s.restore = a.stmts["restore"]
	}
	_, err := a.exec(ctx, "session", a.idle.seconds())
	return err
}

// exec runs a statement of this package, by its name.
func (a *attempt) exec(ctx context.Context, name string, args ...any) (rows int64, err error) {
	query, args := a.text(name, args)
	return a.tx.Exec(ctx, query, args...)
}

// row runs a query of this package, by its name.
func (a *attempt) row(ctx context.Context, name string, args []any, dest ...any) error {
	query, args := a.text(name, args)
	return a.tx.Row(ctx, query, args, dest...)
}

// text returns the text of a statement, and its parameters. On MySQL the parameters are in the text,
// because they cost another round trip there. Strings are hexadecimal, because settings of the
// connection can change the meaning of other strings.
func (a *attempt) text(name string, args []any) (query string, rest []any) {
	query = a.stmts[name]
	if a.dialect != MySQL {
		return query, args
	}
	var b strings.Builder
	for _, arg := range args {
		before, after, _ := strings.Cut(query, "?")
		b.WriteString(before)
		if text, ok := arg.(string); ok {
			fmt.Fprintf(&b, "X'%X'", text)
		} else {
			fmt.Fprint(&b, arg)
		}
		query = after
	}
	b.WriteString(query)
	return b.String(), nil
}

// claimError returns the error of the first claim that the database has refused or that a newer
// claim has replaced. If this process still holds the lease after it has seen a larger fence, no
// later holder can have been granted the key. So the larger fence is from an earlier lease, and the
// lock server has lost data. If this process does not hold the lease any more, or cannot find out,
// it counts as too late.
func (a *attempt) claimError(ctx context.Context) error {
	for _, l := range a.leases {
		seen, owner, err := a.newestClaim(ctx, a.tx, l.Key())
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

// newestClaim returns the newest claim of the resource key, which it reads in tx.
func (b *base) newestClaim(ctx context.Context, tx Transaction, key string) (fence int64, owner string, err error) {
	err = tx.Row(ctx, b.stmts["look"], []any{key}, &fence, &owner)
	return fence, owner, err
}
