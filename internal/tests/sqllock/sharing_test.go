package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

func TestReadersVerifyTheFenceAndClaimNothing(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, store := memory(t)
		shared := account
		shared.Mode = locker.Shared
		reads := func(ctx context.Context, tx *sqllock.Tx) error {
			balance, err := read(ctx, tx, 1)
			if err == nil && balance != 100 {
				t.Errorf("read %d", balance)
			}
			return err
		}
		onlyReads := sqllock.WithTxOptions(&sql.TxOptions{ReadOnly: true})
		for name, do := range map[string]func() error{
			"shared, only to read":    func() error { return transact(t.Context(), l, db, shared, reads, onlyReads) },
			"exclusive, only to read": func() error { return transact(t.Context(), l, db, account, reads, onlyReads) },
			"exclusive, at serializable": func() error {
				return transact(t.Context(), l, db, account, reads, sqllock.WithTxOptions(&sql.TxOptions{ReadOnly: true, Isolation: sql.LevelSerializable}))
			},
		} {
			if err := do(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := db.number(t, "SELECT count(*) FROM latchkit_fence WHERE resource <> ''"); n != 0 {
			t.Errorf("%d claims", n)
		}
		if err := transact(t.Context(), l, db, account, deposit(1), onlyReads); err == nil {
			t.Error("a transaction that only reads has written")
		}
		db.checkBalance(t, 100)

		mixed := []locker.Rule{account, {Key: "account:2", Mode: locker.Shared}}
		if err := transactAll(t.Context(), l, db, mixed, reads, onlyReads); err != nil {
			t.Errorf("Exclusive and Shared together, only to read: %v", err)
		}

		// The deposit writes its lease's fence to the table. A read-only transaction under the
		// same lease still succeeds, because no newer lease has written a larger fence.
		if err := locker.Run(t.Context(), l, account, func(ctx context.Context) error {
			return errors.Join(transactWithin(ctx, db, deposit(0)), transactWithin(ctx, db, reads, onlyReads))
		}); err != nil {
			t.Errorf("after a claim of its own: %v", err)
		}

		db.writeClaim(t, account.Key, 1<<61, "a writer")
		for name, opts := range map[string][]sqllock.Option{"only to read": {onlyReads}, "to write": nil} {
			if err := transact(t.Context(), l, db, shared, reads, opts...); !errors.Is(err, sqllock.ErrFenceRegressed) {
				t.Errorf("a reader whose server went back, %s: %v", name, err)
			}
		}
		late := beginner{db, func() { store.Steal(account.Key) }}
		if err := transact(t.Context(), l, late, shared, reads, onlyReads, sqllock.WithDialect(db.dialect)); !errors.Is(err, sqllock.ErrStaleFence) && !errors.Is(err, sqllock.ErrFenceRegressed) {
			t.Errorf("a reader that was overtaken: %v", err)
		}
	})
}
