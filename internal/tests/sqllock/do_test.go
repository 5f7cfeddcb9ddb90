package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

// afterwards is an Observer that consists of one function. It calls the function when a
// transaction has ended.
type afterwards func()

func (f afterwards) Begin(ctx context.Context, op locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	return ctx, func(locker.Outcome) {
		if op == "transact" {
			f()
		}
	}
}

// If a lease is lost when the transaction has already been committed, Do and Within report no loss.
func TestALossIsToldUnlessTheTransactionIsCommitted(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		for name, tc := range map[string]struct {
			fails error
			left  int64
		}{"committed": {nil, 110}, "rolled back": {errOnPurpose, 100}} {
			for _, within := range []bool{true, false} {
				db.exec(t, "UPDATE accounts SET balance = 100")
				var lease *locker.Lease
				var store *lockertest.Memory
				var l *locker.Engine
				l, store = memory(t, locker.WithObserver(afterwards(func() {
					store.Steal(account.Key)
					_ = lease.Extend(context.Background(), 2*account.TTL) // Extend notices the loss
				})))
				work := func(ctx context.Context, tx *sqllock.Tx) error {
					lease = tx.Leases()[0]
					return errors.Join(deposit(10)(ctx, tx), tc.fails)
				}
				var err error
				if within {
					_ = locker.Run(t.Context(), l, account, func(ctx context.Context) error {
						err = transactWithin(ctx, db, work)
						return nil
					})
				} else {
					err = transact(t.Context(), l, db, account, work)
				}
				if lease.Context().Err() == nil {
					t.Errorf("%s: the control: the lease is not lost", name)
				}
				if !errors.Is(err, tc.fails) || errors.Is(err, locker.ErrLost) != (tc.fails != nil) {
					t.Errorf("%s, within %t: %v", name, within, err)
				}
				db.checkBalance(t, tc.left)
			}
		}
	})
}

func TestTheSameFenceOfAnotherOwnerIsRefused(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		var fence uint64
		err := locker.Run(t.Context(), l, account, func(ctx context.Context) error {
			for range 2 { // two transactions under one lease
				if err := transactWithin(ctx, db, deposit(1)); err != nil {
					t.Fatal(err)
				}
			}
			lease, _ := locker.FromContext(ctx)
			fence = lease.Fence()
			db.writeClaim(t, account.Key, fence, "a stranger")
			return transactWithin(ctx, db, deposit(1))
		})
		e, ok := errors.AsType[*sqllock.Error](err)
		if !ok || !errors.Is(err, sqllock.ErrFenceRegressed) || e.Seen != fence || e.Fence != fence {
			t.Errorf("err = %v", err)
		}
		db.checkBalance(t, 102)
	})
}

func TestAHolderThatWasOvertakenIsStale(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, store := memory(t)
		// between the grant and the claim, another holder gets the key and claims
		late := beginner{db, func() {
			store.Steal(account.Key)
			db.writeClaim(t, account.Key, 1<<61, "the next one")
		}}
		err := transact(t.Context(), l, late, account, deposit(10), sqllock.WithDialect(db.dialect))
		if !errors.Is(err, sqllock.ErrStaleFence) {
			t.Errorf("err = %v", err)
		}
		db.checkBalance(t, 100)
	})
}

func TestOneStaleResourceOfSeveralIsEnough(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		rules := []locker.Rule{{Key: "a", TTL: account.TTL}, {Key: "b", TTL: account.TTL}, {Key: "c", TTL: account.TTL}}
		newer := func() { db.writeClaim(t, "b", 1<<61, "a stranger") }
		for name, do := range map[string]func() error{
			"to write": func() error { newer(); return transactAll(t.Context(), l, db, rules, deposit(10)) },
			"only to read": func() error {
				newer()
				return transactAll(t.Context(), l, db, rules, func(context.Context, *sqllock.Tx) error { return nil },
					sqllock.WithTxOptions(&sql.TxOptions{ReadOnly: true}))
			},
		} {
			db.exec(t, "DELETE FROM latchkit_fence")
			err := do()
			if e, ok := errors.AsType[*sqllock.Error](err); !ok || e.Resource != "b" || e.Seen != 1<<61 {
				t.Errorf("%s: %v, want an error about b", name, err)
			}
		}
		db.checkBalance(t, 100)
	})
}
