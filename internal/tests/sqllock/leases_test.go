package sqllock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// These tests show which leases a call of sqllock claims, and for which keys it refuses to
// wait.

// nestRuns calls fn under the locks of all keys, by nested calls of Run. The outermost Run
// locks the first key.
func nestRuns(ctx context.Context, l locker.Locker, keys []string, fn func(ctx context.Context) error) error {
	if len(keys) == 0 {
		return fn(ctx)
	}
	return locker.Run(ctx, l, locker.Rule{Key: keys[0], TTL: account.TTL}, func(ctx context.Context) error {
		return nestRuns(ctx, l, keys[1:], fn)
	})
}

// A failover loses the lease of the outer key, and a newer holder of this key commits. A claim of
// only the inner key would not notice this newer holder.
func TestWithinClaimsEveryLeaseOfItsContext(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, store := memory(t)
		newer, err := locktest.NewEngine(store.NewProcess())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = newer.Close(context.Background()) }()
		overtaken := func(ctx context.Context) error {
			balance, err := read(ctx, db, 1)
			if err != nil {
				return err
			}
			store.Free("tenant")
			if err := transact(context.Background(), newer, db, locker.Rule{Key: "tenant"}, deposit(400)); err != nil {
				return err
			}
			return transactWithin(ctx, db, func(ctx context.Context, tx *sqllock.Tx) error { return write(ctx, tx, 1, balance-10) })
		}
		for name, do := range map[string]func() error{
			"nested Runs": func() error { return nestRuns(t.Context(), l, []string{"tenant", "order"}, overtaken) },
			"RunAll": func() error {
				return locker.RunAll(t.Context(), l, []locker.Rule{{Key: "order"}, {Key: "tenant"}}, overtaken)
			},
		} {
			before := db.balance(t)
			err := do()
			if e, ok := errors.AsType[*sqllock.Error](err); !ok || !errors.Is(err, sqllock.ErrStaleFence) || e.Resource != "tenant" {
				t.Errorf("%s: %v, want ErrStaleFence about tenant", name, err)
			}
			db.checkBalance(t, before+400)
		}
	})
}

func TestWithinAllClaimsTheLeasesThatItNames(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		if err := handle(t, nil, db).Within(t.Context(), deposit(1)); !errors.Is(err, locker.ErrUnguarded) || !strings.Contains(err.Error(), "c.Request.Context(), not c") {
			t.Errorf("no lease: %v", err)
		}
		l, _ := memory(t)
		err := nestRuns(t.Context(), l, []string{"a", "b", "c"}, func(ctx context.Context) error {
			if err := handle(t, nil, db).WithinAll(ctx, []string{"d"}, deposit(1)); !errors.Is(err, locker.ErrUnguarded) || !strings.Contains(err.Error(), `"d"`) {
				t.Errorf("a key that is not held: %v", err)
			}
			if err := handle(t, nil, db).WithinAll(ctx, nil, deposit(1)); !errors.Is(err, locker.ErrInvalidRule) {
				t.Errorf("no keys: %v", err)
			}
			return handle(t, nil, db).WithinAll(ctx, []string{"c", "a"}, deposit(1))
		})
		if err != nil {
			t.Error(err)
		}
		if n := db.number(t, "SELECT count(*) FROM latchkit_fence WHERE resource IN ('a', 'c')"); n != 2 {
			t.Errorf("%d claims of a and c", n)
		}
		if n := db.number(t, "SELECT count(*) FROM latchkit_fence WHERE resource <> ''"); n != 2 {
			t.Errorf("%d claims", n)
		}
		db.checkBalance(t, 101)
	})
}

// The work reads under a Shared lease and writes under an Exclusive lease.
func TestASharedResourceBesideAnExclusiveOneIsLockedAgainstClaims(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, store := memory(t)
		newer, err := locktest.NewEngine(store.NewProcess())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = newer.Close(context.Background()) }()
		rules := []locker.Rule{{Key: "tenant", Mode: locker.Shared, TTL: account.TTL}, {Key: "order", TTL: account.TTL}}

		db.writeClaim(t, "tenant", 1<<61, "a writer")
		err = transactAll(t.Context(), l, db, rules, deposit(1))
		if e, ok := errors.AsType[*sqllock.Error](err); !ok || e.Resource != "tenant" {
			t.Errorf("a newer writer of the Shared resource has claimed: %v", err)
		}
		db.checkBalance(t, 100)
		for _, before := range []func(){ // in the first case the resource has no row yet, and in the second case its row exists
			func() { db.exec(t, "DELETE FROM latchkit_fence") },
			func() { db.writeClaim(t, "tenant", 1, "an old writer") },
		} {
			before()
			was := db.balance(t)
			written := make(chan error, 1)
			err = transactAll(t.Context(), l, db, rules, func(ctx context.Context, tx *sqllock.Tx) error {
				store.Free("tenant")
				go func() {
					written <- transact(context.Background(), newer, db, locker.Rule{Key: "tenant"}, deposit(50), sqllock.WithRetries(1000))
				}()
				select {
				case err := <-written:
					t.Errorf("a newer writer did not wait for the transaction that reads: %v", err)
					written <- err
				case <-time.After(200 * time.Millisecond): // a writer that does not wait would have ended
				}
				return deposit(10)(ctx, tx)
			})
			if err != nil {
				t.Error(err)
			}
			if err := <-written; err != nil {
				t.Error(err)
			}
			db.checkBalance(t, was+60)
		}
	})
}

// Two transactions that read the same resource do not wait for each other.
func TestTransactionsThatShareAResourceRunTogether(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, err := locker.NewReadWrite(redistest.Shared(t).Client(t))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close(context.Background()) }()
		m := newMeeting()
		for i, err := range runTogether(2, func(i int) error {
			rules := []locker.Rule{{Key: t.Name() + ":tenant", Mode: locker.Shared}, {Key: t.Name() + string(rune('a'+i))}}
			return transactAll(t.Context(), l, db, rules, func(ctx context.Context, tx *sqllock.Tx) error {
				m.wait()
				return write(ctx, tx, 1+i, 0)
			}, sqllock.WithRetries(10))
		}) {
			if err != nil {
				t.Errorf("%d: %v", i, err)
			}
		}
	}, postgres, maria)
}

// A context of locker.Detach still has the transaction of the function, but that transaction has
// ended when the goroutine begins its own.
func TestAGoroutineThatOutlivesItsTransactionMayBeginAnother(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		db.SetMaxOpenConns(1)
		l, _ := memory(t)
		h := handle(t, l, db)
		ended, late := make(chan struct{}), make(chan error, 1)
		err := h.Do(t.Context(), account, func(ctx context.Context, tx *sqllock.Tx) error {
			go func() {
				<-ended
				late <- h.Do(locker.Detach(ctx), account, deposit(10))
			}()
			return deposit(1)(ctx, tx)
		})
		close(ended)
		if late := <-late; err != nil || late != nil {
			t.Errorf("%v, the goroutine: %v", err, late)
		}
		db.checkBalance(t, 111)
	})
}

// A transaction inside of another one of the same Handle would wait for its claim or its connection.
func TestATransactionInsideOfAnotherOneOfItsHandleIsRefused(t *testing.T) {
	t.Parallel()
	db, other := newDatabase(t, postgres), newDatabase(t, sqlite)
	db.SetMaxOpenConns(1)
	l, _ := memory(t)
	h := handle(t, l, db)
	nothing := func(context.Context, *sqllock.Tx) error { return nil }
	err := h.Do(t.Context(), account, func(outer context.Context, tx *sqllock.Tx) error {
		ctx, cancel := context.WithTimeout(outer, 5*time.Second)
		defer cancel()
		background, stop := context.WithTimeout(context.WithoutCancel(outer), 5*time.Second)
		defer stop()
		for name, err := range map[string]error{
			"Within":           h.Within(ctx, nothing),
			"Do":               h.Do(ctx, locker.Rule{Key: "another"}, nothing),
			"Do of Operation":  h.Operation("pay").Do(ctx, locker.Rule{Key: "another"}, nothing),
			"Do in a lock":     locker.Run(ctx, l, locker.Rule{Key: "b"}, func(ctx context.Context) error { return h.Within(ctx, nothing) }),
			"after Background": h.Within(background, nothing),
		} {
			if !errors.Is(err, locker.ErrUnsupported) || !strings.Contains(err.Error(), "use the outer transaction") || strings.Contains(err.Error(), "Locker") {
				t.Errorf("%s: %v", name, err)
			}
		}
		return errors.Join(deposit(1)(outer, tx), transactWithin(outer, other, deposit(1)))
	})
	if err != nil {
		t.Error(err)
	}
	db.checkBalance(t, 101)
	other.checkBalance(t, 101)
}
