package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// runTogether makes n calls at the same time, each with its number i. It returns their errors in
// the order of the numbers.
func runTogether(n int, call func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = call(i) })
	}
	wg.Wait()
	return errs
}

// meeting makes two transactions wait for each other. Later transactions do not wait.
type meeting struct {
	mu          sync.Mutex
	came        int
	bothArrived chan struct{}
}

func newMeeting() *meeting { return &meeting{bothArrived: make(chan struct{})} }

func (m *meeting) wait() {
	m.mu.Lock()
	if m.came++; m.came == 2 {
		close(m.bothArrived)
	}
	m.mu.Unlock()
	select {
	case <-m.bothArrived:
	case <-time.After(time.Second): // SQLite allows one transaction at a time, so the other one does not arrive
	}
}

// crossing updates two rows in a transaction, under a lock of its own. Callers with an even i
// and callers with an odd i update the rows in opposite orders, so that they can deadlock.
func crossing(t *testing.T, db *database, l locker.Locker, m *meeting, i int, opts ...sqllock.Option) error {
	t.Helper()
	first, second := 1+i%2, 2-i%2
	rule := locker.Rule{Key: fmt.Sprintf("crossing:%d", i)}
	return transact(t.Context(), l, db, rule, func(ctx context.Context, tx *sqllock.Tx) error {
		for n, id := range []int{first, second} {
			if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE accounts SET balance = balance + 1 WHERE id = %d", id)); err != nil {
				return err
			}
			if n == 0 {
				m.wait()
			}
		}
		return nil
	}, opts...)
}

func TestADeadlockIsDoneAgain(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		m := newMeeting()
		failed := 0
		for _, err := range runTogether(2, func(i int) error { return crossing(t, db, l, m, i, sqllock.WithRetries(0)) }) {
			if err != nil {
				failed++
			}
		}
		if failed != 1 {
			t.Fatalf("the control: %d of 2 failed, want one deadlock", failed)
		}
		db.checkBalance(t, 101)

		m = newMeeting()
		for _, err := range runTogether(2, func(i int) error { return crossing(t, db, l, m, i) }) {
			if err != nil {
				t.Error(err)
			}
		}
		db.checkBalance(t, 103)
	}, postgres, maria)
}

// When a transaction waits too long for a lock, MySQL and MariaDB undo only the statement that has
// waited. Without a ROLLBACK, the next attempt would also commit the transaction's earlier
// statements.
func TestALockWaitThatTimesOutIsRolledBackAndDoneAgain(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		blocker := db.begin(t, sql.LevelReadCommitted)
		if err := write(t.Context(), blocker, 2, 0); err != nil {
			t.Fatal(err)
		}
		tries := 0
		err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
			if tries++; tries == 2 {
				_ = blocker.Rollback()
			}
			if _, err := tx.ExecContext(ctx, "SET SESSION innodb_lock_wait_timeout = 1"); err != nil {
				return err
			}
			if err := deposit(10)(ctx, tx); err != nil {
				return err
			}
			return write(ctx, tx, 2, 200)
		})
		if err != nil || tries != 2 {
			t.Errorf("%v after %d attempts", err, tries)
		}
		db.checkBalance(t, 110)
	}, maria)
}

func TestABusySQLiteIsDoneAgain(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		blocker := db.begin(t, sql.LevelDefault)
		if err := write(t.Context(), blocker, 2, 0); err != nil {
			t.Fatal(err)
		}
		if err := transact(t.Context(), l, db, account, deposit(10), sqllock.WithRetries(0)); err == nil {
			t.Fatal("the control was not refused")
		}
		time.AfterFunc(500*time.Millisecond, func() { _ = blocker.Rollback() })
		if err := transact(t.Context(), l, db, account, deposit(10), sqllock.WithRetries(1000)); err != nil {
			t.Error(err)
		}
		db.checkBalance(t, 110)
	}, sqlite)
}

// Do repeats a transaction only if, after the pause before the repetition, the lease has enough
// time left for the COMMIT.
func TestNothingIsDoneAgainThatWouldComeTooLate(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, sqlite)
	l, _ := memory(t)
	for margin, want := range map[time.Duration]int{time.Hour: 1, time.Millisecond: 3} {
		tries := 0
		err := transact(t.Context(), l, db, account, func(context.Context, *sqllock.Tx) error { tries++; return tooClose(sqlite, errOnPurpose) },
			sqllock.WithRetries(2), sqllock.WithMargin(margin))
		if !errors.Is(err, errOnPurpose) || tries != want {
			t.Errorf("a margin of %v: %v after %d attempts, want %d", margin, err, tries, want)
		}
	}
}
