package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

func TestATransactionIsCommittedWithItsClaimAndItsOperation(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		var fence uint64
		var op string
		before := db.balance(t)
		err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
			fence, op = tx.Fence(), tx.Op()
			return deposit(10)(ctx, tx)
		})
		if err != nil {
			t.Fatal(err)
		}
		db.checkBalance(t, before+10)
		if got := db.number(t, "SELECT fence FROM latchkit_fence WHERE resource = 'account:1'"); uint64(got) != fence || fence == 0 {
			t.Errorf("the claim has fence %d, want %d", got, fence)
		}
		if committed, err := resolve(t.Context(), db, op); err != nil || !committed {
			t.Errorf("Resolve: %v, %v", committed, err)
		}
	})
}

func TestWhatFailsLeavesNothing(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		var op string
		err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
			op = tx.Op()
			if err := deposit(10)(ctx, tx); err != nil {
				return err
			}
			return errOnPurpose
		})
		if err != errOnPurpose {
			t.Errorf("err = %v", err)
		}
		func() {
			defer func() {
				if r := recover(); r != errOnPurpose {
					t.Errorf("recovered %v", r)
				}
			}()
			_ = transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
				_ = deposit(10)(ctx, tx)
				panic(errOnPurpose)
			})
		}()
		db.checkBalance(t, 100)
		if n := db.number(t, "SELECT count(*) FROM latchkit_fence WHERE resource <> ''"); n != 0 {
			t.Errorf("%d claims are left", n)
		}
		if committed, err := resolve(t.Context(), db, op); err != nil || committed {
			t.Errorf("Resolve: %v, %v", committed, err)
		}
		if err := transact(t.Context(), l, db, account, deposit(1)); err != nil {
			t.Errorf("the lock or a connection was kept: %v", err)
		}
		if open := db.Stats().InUse; open != 0 {
			t.Errorf("%d connections are still in use", open)
		}
	})
}

func TestALostLeaseIsNeverCommitted(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, store := memory(t)
		err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
			if err := deposit(10)(ctx, tx); err != nil {
				return err
			}
			store.Steal(account.Key)
			lease, _ := locker.FromContext(ctx)
			_ = lease.Extend(context.WithoutCancel(ctx), 2*account.TTL) // Extend notices the loss
			return nil                                                  // the work ignores the end of its context
		})
		if !errors.Is(err, locker.ErrLost) {
			t.Errorf("err = %v, want ErrLost", err)
		}
		db.checkBalance(t, 100)
	})
}

// Some libraries, such as pgx, do not end a transaction when its context ends. Do must not
// commit such a transaction after its context has ended.
func TestNothingIsCommittedTooLateByOtherLibraries(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(store *lockertest.Memory, lease *locker.Lease, cancel func()){
		"the lease is lost": func(store *lockertest.Memory, lease *locker.Lease, _ func()) {
			store.Steal(account.Key)
			_ = lease.Extend(context.Background(), 2*account.TTL)
		},
		"the caller gives up": func(_ *lockertest.Memory, _ *locker.Lease, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				l, store := memory(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				committed := false
				err := transactWith(ctx, l, sqllock.Database[*keen]{
					Dialect: db.dialect,
					Begin: func(ctx context.Context, opts *sql.TxOptions) (*keen, sqllock.Transaction, error) {
						tx, err := db.BeginTx(context.WithoutCancel(ctx), opts)
						k := newKeen(tx, func() { committed = true })
						return k, k, err
					},
				}, account, func(ctx context.Context, tx *keen) error {
					lease, _ := locker.FromContext(ctx)
					end(store, lease, cancel)
					return write(context.WithoutCancel(ctx), tx.Tx, 1, 110)
				})
				if err == nil || committed {
					t.Errorf("err = %v, committed %v", err, committed)
				}
				db.checkBalance(t, 100)
			})
		})
	}
}

// keen is a transaction that calls beforeCommit just before its COMMIT.
type keen struct {
	silent
	beforeCommit func()
}

func newKeen(tx *sql.Tx, beforeCommit func()) *keen {
	return &keen{silent{Tx: tx, parent: &silent{transactions: 2}}, sync.OnceFunc(beforeCommit)}
}

func (k *keen) Exec(ctx context.Context, query string, args ...any) (rows int64, err error) {
	if query == "COMMIT" {
		k.beforeCommit()
	}
	return k.silent.Exec(ctx, query, args...)
}

func (k *keen) Commit(ctx context.Context) error {
	k.beforeCommit()
	return k.silent.Commit(ctx)
}

func TestALeaseThatIsLostAfterTheCommitIsNoError(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		store := newLosing()
		l := store.locker(t)
		err := transact(t.Context(), l, db, account, deposit(10))
		if err != nil || !store.reportedLost.Load() {
			t.Errorf("err = %v; the release was refused: %v", err, store.reportedLost.Load())
		}
		db.checkBalance(t, 110)
	})
}

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

// Within runs under a lease that other code has taken. If this lease is lost when the
// transaction has already been committed, Within reports no loss.
func TestWithinTellsOfALossUnlessItHasCommitted(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		for name, tc := range map[string]struct {
			fails error
			left  int64
		}{"committed": {nil, 110}, "rolled back": {errOnPurpose, 100}} {
			db.exec(t, "UPDATE accounts SET balance = 100")
			var lose func()
			l, store := memory(t, locker.WithObserver(afterwards(func() { lose() })))
			_ = locker.Run(t.Context(), l, account, func(ctx context.Context) error {
				lease, _ := locker.FromContext(ctx)
				lose = func() {
					store.Steal(account.Key)
					_ = lease.Extend(context.WithoutCancel(ctx), 2*account.TTL) // Extend notices the loss
				}
				err := transactWithin(ctx, db, func(ctx context.Context, tx *sqllock.Tx) error {
					return errors.Join(deposit(10)(ctx, tx), tc.fails)
				})
				if lease.Context().Err() == nil {
					t.Errorf("%s: the control: the lease is not lost", name)
				}
				if !errors.Is(err, tc.fails) || errors.Is(err, locker.ErrLost) != (tc.fails != nil) {
					t.Errorf("%s: Within returned %v", name, err)
				}
				return nil
			})
			db.checkBalance(t, tc.left)
		}
	})
}

func TestTheSameFenceOfAnotherOwnerIsRefused(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		lease, err := l.Acquire(t.Context(), account)
		if err != nil {
			t.Fatal(err)
		}
		within := lockedBy(t, lease)
		before := db.balance(t)
		for range 2 { // two transactions under one lease
			if err := transactWithin(within, db, deposit(1)); err != nil {
				t.Fatal(err)
			}
		}
		db.writeClaim(t, account.Key, lease.Fence(), "a stranger")
		err = transactWithin(within, db, deposit(1))
		e, ok := errors.AsType[*sqllock.Error](err)
		if !ok || !errors.Is(err, sqllock.ErrFenceRegressed) || e.Seen != lease.Fence() || e.Fence != lease.Fence() {
			t.Errorf("err = %v", err)
		}
		db.checkBalance(t, before+2)
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestALockServerThatWentBackIsNoticedAndRepaired(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		ahead := uint64(1) << 61
		db.writeClaim(t, account.Key, ahead, "before the loss")
		err := transact(t.Context(), l, db, account, deposit(10))
		e, ok := errors.AsType[*sqllock.Error](err)
		if !ok || !errors.Is(err, sqllock.ErrFenceRegressed) || errors.Is(err, sqllock.ErrStaleFence) || e.Seen != ahead {
			t.Fatalf("err = %v", err)
		}
		if _, err := handle(t, l, db).Repair(t.Context(), account.Key); err != nil {
			t.Fatal(err)
		}
		if err := transact(t.Context(), l, db, account, deposit(10)); err != nil {
			t.Errorf("after Repair: %v", err)
		}
		db.checkBalance(t, 110)
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

func TestALeaseWithoutAFenceIsRefused(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l := fenceless(t)
		ran := false
		err := transact(t.Context(), l, db, account, func(context.Context, *sqllock.Tx) error { ran = true; return nil })
		if !errors.Is(err, locker.ErrUnsupported) || ran {
			t.Errorf("err = %v, ran %v", err, ran)
		}
	}, sqlite)
}

// A program that uses no fences may have taken the key. Then the old holder is stale, too.
func TestAHolderThatAForeignOneHasOvertakenIsStale(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, store := memory(t)
		late := beginner{db, func() {
			store.Occupy(account.Key, time.Hour)
			db.writeClaim(t, account.Key, 1<<61, "one in between")
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
