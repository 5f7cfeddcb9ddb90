package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

func TestSeveralResourcesAreTakenInTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		var seen lockertest.Recorder
		l, _ := memory(t, locker.WithObserver(&seen))
		rules := []locker.Rule{{Key: "b"}, {Key: "c"}, {Key: "a"}, {Key: "b"}}
		err := transactAll(t.Context(), l, db, rules, func(ctx context.Context, tx *sqllock.Tx) error {
			var keys []string
			for _, lease := range tx.Leases() {
				keys = append(keys, lease.Key())
			}
			if !slices.Equal(keys, []string{"a", "b", "c"}) || tx.Fence() != tx.Leases()[0].Fence() {
				t.Errorf("keys %v", keys)
			}
			return deposit(1)(ctx, tx)
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(seen.Records(locker.OpAcquire)); n != 3 {
			t.Errorf("%d locks were taken, want 3", n)
		}
		if n := db.number(t, "SELECT count(*) FROM latchkit_fence WHERE fence > 0"); n != 3 {
			t.Errorf("%d claims, want 3", n)
		}
		if n := db.number(t, "SELECT count(*) FROM latchkit_ledger"); n != 1 {
			t.Errorf("%d operations, want 1", n)
		}

		// Transfers in both directions run at the same time without a deadlock. No update is lost.
		errs := runTogether(20, func(i int) error {
			from, to := 1+i%2, 2-i%2
			rules := []locker.Rule{{Key: fmt.Sprintf("account:%d", from)}, {Key: fmt.Sprintf("account:%d", to)}}
			return transactAll(t.Context(), l, db, rules, func(ctx context.Context, tx *sqllock.Tx) error {
				a, err := read(ctx, tx, from)
				if err != nil {
					return err
				}
				b, err := read(ctx, tx, to)
				if err != nil {
					return err
				}
				return errors.Join(write(ctx, tx, from, a-int64(i)), write(ctx, tx, to, b+int64(i)))
			}, sqllock.WithRetries(100))
		})
		for _, err := range errs {
			if err != nil {
				t.Error(err)
			}
		}
		if sum := db.number(t, "SELECT sum(balance) FROM accounts"); sum != 201 {
			t.Errorf("the sum is %d, want 201", sum)
		}
		// Transfers with an even i take money from account 1, and transfers with an odd i pay
		// money into it: 90 out, 100 in.
		db.checkBalance(t, 101+10)

		if err := transactAll(t.Context(), l, db, nil, deposit(1)); !errors.Is(err, locker.ErrInvalidRule) {
			t.Errorf("without rules: %v", err)
		}
	})
}

func TestAnUpdateCanCarryTheFenceInItsRow(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		update := func(ctx context.Context, ex querier, fence uint64, balance int64) error {
			return sqllock.FencedUpdate(ctx, ex, fmt.Sprintf("UPDATE accounts SET balance = %d, fence = %d WHERE id = 1 AND fence <= %d", balance, fence, fence))
		}
		err := locker.Run(t.Context(), l, account, func(ctx context.Context) error {
			lease, _ := locker.FromContext(ctx)
			if err := update(ctx, db, lease.Fence(), 110); err != nil {
				return err
			}
			err := update(ctx, db, lease.Fence()-1, 0)
			e, ok := errors.AsType[*sqllock.Error](err)
			if !ok || !errors.Is(err, sqllock.ErrStaleFence) || e.Resource != account.Key {
				t.Errorf("a smaller fence: %v", err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error { return update(ctx, tx, tx.Fence(), 120) }); err != nil {
			t.Error(err)
		}
		db.checkBalance(t, 120)
	})
}

func TestALostLeaseEndsTheTransactionAtOnce(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, store := memory(t)
		err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
			if err := deposit(10)(ctx, tx); err != nil {
				return err
			}
			store.Steal(account.Key)
			lease, _ := locker.FromContext(ctx)
			_ = lease.Extend(context.WithoutCancel(ctx), 2*account.TTL)
			await(t, "the row is free again", func() bool { // now, although this function has not returned yet
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				_, err := db.ExecContext(ctx, "UPDATE accounts SET balance = balance + 1 WHERE id = 1")
				return err == nil
			})
			return nil
		})
		if !errors.Is(err, locker.ErrLost) {
			t.Errorf("err = %v", err)
		}
		db.checkBalance(t, 101)
	})
}

func TestWhatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, sqlite)
	l, _ := memory(t)
	var none *locker.Engine
	for name, tc := range map[string]struct {
		do   func() error
		want string
	}{
		"a nil Locker": {func() error { return transact(t.Context(), none, db, account, deposit(1)) }, "the Locker is nil"},
		"a binary key": {func() error {
			return transact(t.Context(), l, db, locker.Rule{Key: "a\x00b"}, deposit(1))
		}, "UTF-8 without NUL"},
		"a long key": {func() error {
			return transact(t.Context(), l, db, locker.Rule{Key: strings.Repeat("k", 513)}, deposit(1))
		}, "513 bytes, and at most 512"},
		"a Database without Begin": {func() error {
			return transactWith(t.Context(), l, sqllock.Database[*silent]{Dialect: sqlite}, account, func(context.Context, *silent) error { return nil })
		}, "Begin"},
		"a Database without a dialect": {func() error {
			return transactWith(t.Context(), l, sqllock.Database[*silent]{Begin: func(context.Context, *sql.TxOptions) (*silent, sqllock.Transaction, error) { return nil, nil, nil }},
				account, func(context.Context, *silent) error { return nil })
		}, "WithDialect"},
		"a dialect": {func() error { return transact(t.Context(), l, db, account, deposit(1), sqllock.WithDialect(9)) }, "WithDialect(9)"},
		"a prefix": {func() error {
			return transact(t.Context(), l, db, account, deposit(1), sqllock.WithTablePrefix("a;b"))
		}, `WithTablePrefix("a;b")`},
		"retries":   {func() error { return transact(t.Context(), l, db, account, deposit(1), sqllock.WithRetries(-1)) }, "WithRetries(-1)"},
		"a margin":  {func() error { return transact(t.Context(), l, db, account, deposit(1), sqllock.WithMargin(-1)) }, "positive times"},
		"an answer": {func() error { return transact(t.Context(), l, db, account, deposit(1), sqllock.WithAnswerWithin(0)) }, "WithAnswerWithin(0s)"},
		"an operation without a name": {func() error {
			return handle(t, l, db).Operation("").Do(t.Context(), account, deposit(1))
		}, `Operation("")`},
	} {
		if err := tc.do(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want something about %q", name, err, tc.want)
		}
	}
	db.checkBalance(t, 100)
}

func TestRepairNeedsALockerThatRaisesFences(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, sqlite)
	l, _ := memory(t)
	for name, h := range map[string]*sqllock.DB{"no Locker": handle(t, nil, db), "another Locker": handle(t, plain{l}, db)} {
		if _, err := h.Repair(t.Context()); !errors.Is(err, locker.ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	db.writeClaim(t, account.Key, 1<<61, "old")
	h := handle(t, l, db)
	if err := h.Do(t.Context(), account, deposit(1)); !errors.Is(err, sqllock.ErrFenceRegressed) {
		t.Errorf("before: %v", err)
	}
	if n, err := h.Repair(t.Context(), account.Key, "never claimed"); n != 1 || err != nil {
		t.Errorf("repaired %d, %v; want only the key that was claimed", n, err)
	}
	if err := h.Do(t.Context(), account, deposit(1)); err != nil {
		t.Errorf("after: %v", err)
	}
	if _, err := h.Repair(t.Context(), "a\x00b"); !errors.Is(err, locker.ErrInvalidKey) {
		t.Errorf("a key with NUL: %v", err)
	}
}
