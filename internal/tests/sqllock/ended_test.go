package sqllock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/sqllock"
)

// These tests are about transactions that end before Do has sent a COMMIT. An error ends the
// transaction, or the caller's function ends it.

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

// A function leaves Rows or a Row open, and drivers say that the connection is lost. Nothing is
// committed, and the error says what to look for. On SQLite, open Rows hinder no COMMIT.
func TestAFunctionThatLeavesRowsOpenIsToldSo(t *testing.T) {
	t.Parallel()
	const many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT i FROM n"
	for name, leave := range map[string]func(ctx context.Context, tx *sqllock.Tx) error{
		"Rows": func(ctx context.Context, tx *sqllock.Tx) error {
			rows, err := tx.QueryContext(ctx, many) //nolint:sqlclosecheck,rowserrcheck // the mistake
			if err == nil {
				rows.Next()
			}
			return err
		},
		"a Row": func(ctx context.Context, tx *sqllock.Tx) error { return tx.QueryRowContext(ctx, many).Err() },
	} {
		t.Run(name, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				l, _ := memory(t)
				err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
					return errors.Join(deposit(10)(ctx, tx), leave(ctx, tx))
				})
				want := int64(110)
				if db.dialect != sqlite {
					want = 100
					if !errors.Is(err, sqllock.ErrRetries) || !strings.Contains(err.Error(), "Rows or a Row that are open") {
						t.Errorf("the error is %v", err)
					}
				} else if err != nil {
					t.Error(err)
				}
				db.checkBalance(t, want)
				if err := transact(t.Context(), l, db, account, deposit(5)); err != nil {
					t.Errorf("the next transaction: %v", err)
				}
			})
		})
	}
}
