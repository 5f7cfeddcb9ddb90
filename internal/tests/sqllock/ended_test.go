package sqllock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/latchkit/latchkit/sqllock"
)

// These tests are about transactions that end before Do has sent a COMMIT. An error ends the
// transaction, or the caller's function ends it.

// InnoDB reports the deadlock of a SELECT … FOR UPDATE only when the row of the deadlock is read.
// The Tx of sqllock does not get this error, because only rows.Err or Scan returns it.
func TestWorkThatIgnoresADeadlockAmongItsRowsWritesNothing(t *testing.T) {
	t.Parallel()
	t.Run("mysql", func(t *testing.T) {
		t.Parallel()
		db := newDatabase(t, maria)
		l, _ := memory(t)
		m := newMeeting()
		var deadlocks [2]error
		errs := runTogether(2, func(i int) error {
			rule := account
			rule.Key = fmt.Sprintf("careless:%d", i)
			return transact(t.Context(), l, db, rule, func(ctx context.Context, tx *sqllock.Tx) error {
				if err := write(ctx, tx, 1+i, 0); err != nil {
					return err
				}
				m.wait()
				rows, err := tx.QueryContext(ctx, "SELECT id FROM accounts FORCE INDEX (PRIMARY) ORDER BY id "+[]string{"ASC", "DESC"}[i]+" FOR UPDATE")
				if err != nil {
					return err
				}
				for rows.Next() {
				}
				deadlocks[i] = rows.Err()
				_, _ = tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO accounts (id, balance) VALUES (%d, 0)", 10+i))
				return nil
			}, sqllock.WithRetries(0))
		})
		for i := range errs {
			if (deadlocks[i] == nil) != (errs[i] == nil) {
				t.Errorf("the deadlock was %v, Do returned %v", deadlocks[i], errs[i])
			}
		}
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("want one deadlock, got %v", errs)
		}
		if n := db.number(t, "SELECT count(*) FROM accounts WHERE id >= 10"); n != 1 {
			t.Errorf("%d rows are left, want one: that of the transaction that was committed", n)
		}
		if n := db.number(t, "SELECT count(*) FROM accounts WHERE balance = 0"); n != 2 {
			t.Errorf("%d rows were written, want two: all work of one transaction", n)
		}
	})
}

// A function under Do must not end its transaction. If it calls Commit or Rollback nevertheless, the
// error has the operation, which Resolve knows.
func TestAFunctionThatEndsItsTransactionIsToldSo(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		db.SetMaxOpenConns(1)
		l, _ := memory(t)
		for _, committed := range []bool{true, false} {
			before, calls := db.balance(t), 0
			err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
				calls++
				end := tx.SQL().Rollback
				if committed {
					end = tx.SQL().Commit
				}
				return errors.Join(deposit(10)(ctx, tx), end())
			})
			e, ok := errors.AsType[*sqllock.Error](err)
			if !ok || !errors.Is(err, sqllock.ErrEnded) || calls != 1 {
				t.Fatalf("committed %v: %v after %d calls, want ErrEnded", committed, err, calls)
			}
			if was, err := resolve(t.Context(), db, e.Op); was != committed || err != nil {
				t.Errorf("Resolve: %v, %v; want %v", was, err, committed)
			}
			if committed {
				before += 10
			}
			db.checkBalance(t, before)
		}
		if err := transact(t.Context(), l, db, account, deposit(10)); err != nil {
			t.Error(err)
		}
	})
}

// After a failed statement, PostgreSQL rolls the transaction back at COMMIT. Do must then
// return an error, although the function returned nil.
func TestAnErrorThatTheFunctionIgnoresIsNotCommitted(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
			_ = deposit(10)(ctx, tx)
			_, _ = tx.ExecContext(ctx, "INSERT INTO nothing VALUES (1)")
			return nil
		})
		if err == nil {
			t.Error("it was committed")
		}
		t.Log(err)
		db.checkBalance(t, 100)
	}, postgres)
}

// On MySQL, the settings of a transaction are settings of its session. After the transaction,
// these settings must not affect the next user of the connection.
func TestTheSessionIsLeftAsItWas(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, maria)
	db.SetMaxOpenConns(1)
	l, _ := memory(t)
	for name, work := range map[string]func(context.Context, *sqllock.Tx) error{
		"committed":             func(context.Context, *sqllock.Tx) error { return nil },
		"rolled back":           func(context.Context, *sqllock.Tx) error { return errOnPurpose },
		"ended by the function": func(_ context.Context, tx *sqllock.Tx) error { return tx.SQL().Rollback() },
		"given up": func(ctx context.Context, tx *sqllock.Tx) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			_, err := tx.ExecContext(ctx, "SELECT 1")
			return err
		},
	} {
		_ = transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
			return errors.Join(deposit(0)(ctx, tx), work(ctx, tx))
		})
		if n := db.number(t, "SELECT @@SESSION.autocommit"); n != 1 {
			t.Errorf("%s: autocommit is off", name)
		}
		if n := db.number(t, "SELECT @@SESSION.wait_timeout"); n < 1000 {
			t.Errorf("%s: wait_timeout is %d", name, n)
		}
	}
}

// Instead of a pool, Do may get a *sql.Conn, which is a single connection. The session of this
// connection gets its old settings back, too.
func TestAConnIsBoundAndGivenBackAsItWas(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, maria)
	l, _ := memory(t)
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	seen := []int64{}
	look := func(q querier) {
		for _, name := range []string{"wait_timeout", "autocommit"} {
			var n int64
			if err := q.QueryRowContext(t.Context(), "SELECT @@SESSION."+name).Scan(&n); err != nil {
				t.Error(err)
			}
			seen = append(seen, n)
		}
	}
	look(conn)
	for _, result := range []error{nil, errOnPurpose} {
		if err := transact(t.Context(), l, conn, account, func(_ context.Context, tx *sqllock.Tx) error {
			look(tx)
			return result
		}, sqllock.WithIdleLimit(7*1e9)); err != result {
			t.Error(err)
		}
		look(conn)
	}
	if want := []int64{28800, 1, 7, 0, 28800, 1, 7, 0, 28800, 1}; !slices.Equal(seen, want) {
		t.Errorf("wait_timeout and autocommit were %v, want %v", seen, want)
	}
}

// When a context ends, database/sql rolls the transaction back, on a separate goroutine and after
// the statement under way. sqllock must not restore the session's settings before this
// ROLLBACK: as soon as autocommit is on again, the server would commit the open transaction.
// (If the settings are restored earlier, this test fails every third time.)
func TestASessionIsPutBackBehindTheRollback(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, maria)
	l, _ := memory(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	slow := make(chan error, 1)
	err := transact(ctx, l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
		err := deposit(10)(ctx, tx)
		go func() {
			_, err := tx.ExecContext(context.WithoutCancel(ctx), "DO SLEEP(1)")
			slow <- err
		}()
		await(t, "the slow statement runs", func() bool {
			return db.number(t, "SELECT count(*) FROM information_schema.processlist WHERE db = database() AND info LIKE 'DO%'") > 0
		})
		cancel()
		<-time.After(200 * time.Millisecond) // in this time, database/sql begins its ROLLBACK
		return errors.Join(err, ctx.Err())
	})
	if slowErr := <-slow; !errors.Is(err, context.Canceled) || slowErr != nil {
		t.Errorf("err = %v, the slow statement: %v", err, slowErr)
	}
	db.checkBalance(t, 100)
	if n := db.number(t, "SELECT @@SESSION.autocommit"); n != 1 {
		t.Error("autocommit is off")
	}
}
