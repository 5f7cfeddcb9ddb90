package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// These tests show which anomalies occur when a transaction checks the fence in a wrong way.
// Each anomaly is first provoked without sqllock, because otherwise the test with sqllock would
// prove nothing.

// begin begins a transaction with the given isolation level. At the end of the test, the
// transaction is rolled back if it was not committed.
func (db *database) begin(t testing.TB, level sql.IsolationLevel) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// steps runs all statements of a scenario in order. The test fails at the first error.
func steps(t testing.TB, all ...func() error) {
	t.Helper()
	for i, step := range all {
		if err := step(); err != nil {
			t.Fatalf("step %d: %v", i+1, err)
		}
	}
}

// checkFence checks a fence without a claim: it reads the stored fence, and returns an error if
// the stored fence is larger than the fence mine.
func checkFence(ctx context.Context, tx *sql.Tx, mine int64) error {
	var newest int64
	if err := tx.QueryRowContext(ctx, "SELECT fence FROM latchkit_fence WHERE resource = 'account:1'").Scan(&newest); err != nil {
		return err
	}
	if newest > mine {
		return sqllock.ErrStaleFence
	}
	return nil
}

// claimFence claims the fence mine as sqllock does. It returns an error if a larger fence is
// stored.
func claimFence(ctx context.Context, tx *sql.Tx, mine int64) error {
	r, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE latchkit_fence SET fence = %d, owner = '%d' WHERE resource = 'account:1' AND fence <= %d", mine, mine, mine))
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n == 0 {
		return errors.Join(err, sqllock.ErrStaleFence)
	}
	return nil
}

func TestAnomalyAPlainCheckOfTheFenceLosesAnUpdate(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		ctx := t.Context()
		db.writeClaim(t, account.Key, 1, "old")
		var seen, newer int64
		old, next := db.begin(t, sql.LevelReadCommitted), db.begin(t, sql.LevelReadCommitted)
		steps(t,
			func() error { return checkFence(ctx, old, 1) },
			func() (err error) { seen, err = read(ctx, old, 1); return err },
			// At this point, the old holder is paused and loses its lease.
			func() error { return claimFence(ctx, next, 2) },
			func() (err error) { newer, err = read(ctx, next, 1); return err },
			func() error { return write(ctx, next, 1, newer+50) },
			next.Commit,
			func() error { return write(ctx, old, 1, seen+10) },
			old.Commit,
		)
		if got := db.balance(t); got != 110 {
			t.Fatalf("the control has %d, and should have lost the newer holder's 50", got)
		}
	}, postgres, maria)
}

func TestAnomalyAClaimThatComesLastLosesAnUpdate(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		ctx := t.Context()
		db.writeClaim(t, account.Key, 1, "nobody")
		var seen, newer int64
		old, next := db.begin(t, sql.LevelReadCommitted), db.begin(t, sql.LevelReadCommitted)
		steps(t,
			func() (err error) { newer, err = read(ctx, next, 1); return err },
			func() (err error) { seen, err = read(ctx, old, 1); return err },
			func() error { return write(ctx, old, 1, seen+10) },
			func() error { return claimFence(ctx, old, 2) },
			old.Commit,
			func() error { return write(ctx, next, 1, newer+50) },
			func() error { return claimFence(ctx, next, 3) },
			next.Commit,
		)
		if got := db.balance(t); got != 150 {
			t.Fatalf("the control has %d, and should have lost the older holder's 10", got)
		}
	}, postgres, maria)
}

// With sqllock, none of the anomalies above occurs. In this test, an old holder reads, loses
// its lease, and does not notice this. Then a newer holder reads and writes, and only then the
// old holder writes.
func TestAnOvertakenHolderLosesNoUpdate(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				opts := []sqllock.Option{
					sqllock.WithRetries(1000), sqllock.WithIdleLimit(time.Minute),
					sqllock.WithTxOptions(&sql.TxOptions{Isolation: level}),
				}
				old, store := memory(t)
				next, err := locktest.NewEngine(store.NewProcess())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = next.Close(context.Background()) }()

				want := int64(100)
				count := func(err error, amount int64) {
					if err == nil {
						want += amount
					}
				}
				hasRead, newer := make(chan struct{}), make(chan error, 1)
				first := true
				err = transact(t.Context(), old, db, account, func(_ context.Context, tx *sqllock.Tx) error {
					ctx := context.Background() // with this context, the function does not notice the loss
					seen, err := read(ctx, tx, 1)
					if err != nil {
						return err
					}
					if first {
						first = false
						close(hasRead)
						store.Free(account.Key)
						go func() { newer <- transact(t.Context(), next, db, account, deposit(50), opts...) }()
					}
					return write(ctx, tx, 1, seen+10)
				}, opts...)
				<-hasRead
				count(err, 10)
				if e := <-newer; e == nil {
					want += 50
				} else {
					t.Errorf("the newer holder: %v", e)
				}
				db.checkBalance(t, want)
			}, postgres, maria)
		})
	}
}

func TestAnomalyAWaitingClaimFailsAtRepeatableRead(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		ctx := t.Context()
		db.writeClaim(t, account.Key, 1, "nobody")
		for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
			one, two := db.begin(t, level), db.begin(t, level)
			failed := make(chan error)
			steps(t,
				func() error { _, err := read(ctx, two, 2); return err }, // this read determines the snapshot
				func() error { return claimFence(ctx, one, 2) },
			)
			go func() { failed <- claimFence(ctx, two, 3) }()
			if err := one.Commit(); err != nil {
				t.Fatal(err)
			}
			var state interface{ SQLState() string }
			if err := <-failed; !errors.As(err, &state) || state.SQLState() != "40001" {
				t.Fatalf("at %v the control got %v, want a serialization failure", level, err)
			}
			_ = two.Rollback()
		}
		// With sqllock, many transactions collide, too, but Do repeats them, so no caller gets
		// an error.
		l, _ := memory(t)
		for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
			before := db.balance(t)
			done := make(chan error)
			const all = 10
			for i := range all { // each caller has its own lock, but all write the same row
				go func() {
					rule := locker.Rule{Key: fmt.Sprintf("deposit:%d", i)}
					done <- transact(ctx, l, db, rule, deposit(1), sqllock.WithRetries(1000), sqllock.WithTxOptions(&sql.TxOptions{Isolation: level}))
				}()
			}
			for range all {
				if err := <-done; err != nil {
					t.Errorf("at %v: %v", level, err)
				}
			}
			db.checkBalance(t, before+all)
		}
	}, postgres)
}

func TestAnomalyAPausedHolderBlocksItsSuccessor(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		db.writeClaim(t, account.Key, 1, "nobody")
		paused, next := db.begin(t, sql.LevelReadCommitted), db.begin(t, sql.LevelReadCommitted)
		if err := claimFence(t.Context(), paused, 2); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := claimFence(ctx, next, 3); err == nil {
			t.Fatal("the control was not blocked")
		}
		_ = paused.Rollback()

		// With sqllock, the server ends the paused transaction, because it is idle for too
		// long. So its successor waits only until then.
		l, store := memory(t)
		successor, err := locktest.NewEngine(store.NewProcess())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = successor.Close(context.Background()) }()
		err = transact(t.Context(), l, db, account, func(_ context.Context, tx *sqllock.Tx) error {
			seen, err := read(context.Background(), tx, 1)
			if err != nil {
				return err
			}
			store.Free(account.Key)
			if err := transact(t.Context(), successor, db, account, deposit(50)); err != nil {
				t.Errorf("the successor: %v", err)
			}
			return write(context.Background(), tx, 1, seen+10)
		}, sqllock.WithIdleLimit(time.Second))
		if err == nil {
			t.Error("the paused holder was committed")
		}
		db.checkBalance(t, 150)
	}, postgres, maria)
}
