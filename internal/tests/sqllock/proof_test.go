package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/internal/sqltest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// These tests are about transactions that a statement of the work ends, such as a COMMIT or a DDL
// statement, and about transactions that other code has begun.

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// A statement of the work, for example from a migration, may be COMMIT or ROLLBACK. Do notices
// that this has ended its transaction, and returns ErrEnded.
func TestATransactionThatAStatementsTextHasEndedIsNoticed(t *testing.T) {
	t.Parallel()
	for text, left := range map[string]int64{"ROLLBACK": 100, "COMMIT": 110} {
		for name, next := range map[string]string{"": "", ", and another one begun": "BEGIN"} {
			t.Run(text+name, func(t *testing.T) {
				forEach(t, func(t *testing.T, db *database) {
					l, _ := memory(t)
					err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
						if err := deposit(10)(ctx, tx); err != nil {
							return err
						}
						if _, err := tx.ExecContext(ctx, text); err != nil {
							return err
						}
						if next != "" {
							_, err := tx.ExecContext(ctx, next)
							return err
						}
						return nil
					})
					e, ok := errors.AsType[*sqllock.Error](err)
					if !ok || !errors.Is(err, sqllock.ErrEnded) {
						t.Fatalf("err = %v", err)
					}
					db.checkBalance(t, left)
					committed, err := resolve(t.Context(), db, e.Op)
					if want := left == 110; err != nil || committed != want {
						t.Errorf("Resolve: %v, %v, want %v", committed, err, want)
					}
					if err := transact(t.Context(), l, db, account, deposit(1)); err != nil {
						t.Errorf("the next Do: %v", err)
					}
					db.checkBalance(t, left+1)
				})
			})
		}
	}
}

// SQLite lets a read-only transaction write and commit. Then the error must not be the one after
// which nothing was changed.
func TestACommitOfAReadOnlyTransactionIsNoticedOnSQLite(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, sqlite)
	l, _ := memory(t)
	onlyReads := sqllock.WithTxOptions(&sql.TxOptions{ReadOnly: true})
	err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
		_, err := tx.ExecContext(ctx, "COMMIT")
		return errors.Join(deposit(10)(ctx, tx), err)
	}, onlyReads)
	if e, ok := errors.AsType[*sqllock.Error](err); !ok || !errors.Is(err, sqllock.ErrEnded) || e.Op == "" {
		t.Errorf("Do: %v, want ErrEnded with Op", err)
	}
	db.checkBalance(t, 110)

	err = locker.Run(t.Context(), l, account, func(ctx context.Context) error {
		_, err := handle(t, nil, db, onlyReads).InTx(ctx, db.begin(t, sql.LevelDefault))
		return err
	})
	if !errors.Is(err, locker.ErrUnsupported) {
		t.Errorf("InTx: %v, want ErrUnsupported", err)
	}
}

// On MySQL and MariaDB, a DDL statement commits the transaction. Do notices this, too.
func TestDDLInTheFunctionIsNoticedOnMySQL(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, maria)
	l, _ := memory(t)
	err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE made (id INTEGER)")
		return errors.Join(err, deposit(10)(ctx, tx))
	})
	if !errors.Is(err, sqllock.ErrEnded) {
		t.Errorf("err = %v", err)
	}
	db.checkBalance(t, 100) // the DDL has committed the claim, and the later deposit was rolled back
}

// plainLibrary returns db as the database of a minimal library. The transactions of this library
// end with their contexts, its connections go back to a pool, and its functions get no Tx of
// sqllock.
func plainLibrary(db *database) sqllock.Database[*sql.Tx] {
	return sqllock.Database[*sql.Tx]{
		Dialect: db.dialect,
		Begin: func(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, sqllock.Transaction, error) {
			tx, err := db.BeginTx(ctx, opts)
			return tx, &silent{Tx: tx, parent: &silent{transactions: 2}}, err
		},
	}
}

// After a deadlock whose error was ignored, the later statements must not be committed one by one.
// sqllock must ensure this with any library for databases.
func TestWhatFollowsADroppedDeadlockIsNotCommittedByAnyLibrary(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, maria)
	l, _ := memory(t)
	m := newMeeting()
	errs := runTogether(2, func(i int) error {
		rule := locker.Rule{Key: fmt.Sprintf("careless:%d", i), TTL: account.TTL}
		return transactWith(t.Context(), l, plainLibrary(db), rule, func(ctx context.Context, tx *sql.Tx) error {
			for n, id := range []int{1 + i, 2 - i} {
				_, _ = tx.ExecContext(ctx, fmt.Sprintf("UPDATE accounts SET balance = balance - 10 WHERE id = %d", id))
				if n == 0 {
					m.wait()
				}
			}
			_, _ = tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO accounts (id, balance) VALUES (%d, 20)", 10+i))
			return nil
		}, sqllock.WithRetries(0))
	})
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatalf("want one deadlock, got %v", errs)
	}
	if sum := db.number(t, "SELECT sum(balance) FROM accounts"); sum != 200 {
		t.Errorf("the sum is %d, want 200: money was made", sum)
	}
}

// When the tables exist, Migrate works for a role that may use them, but may not create tables.
func TestMigrateOnlyLooksWhenTheTablesAreThere(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, postgres)
	role := "reader_" + db.schema
	for _, statement := range []string{
		"CREATE ROLE " + role + " LOGIN",
		"GRANT USAGE ON SCHEMA " + db.schema + " TO " + role,
		"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA " + db.schema + " TO " + role,
	} {
		db.exec(t, statement)
	}
	far := *db
	far.DB = open(t, db.driver, sqltest.Postgres.DSNOf(role, db.addr, "postgres")+"&search_path="+db.schema)
	if _, err := far.ExecContext(t.Context(), "CREATE TABLE mine (id integer)"); err == nil {
		t.Fatal("the control: the role may create tables")
	}
	if err := migrate(t.Context(), far.DB); err != nil {
		t.Error(err)
	}
	l, _ := memory(t)
	if err := transact(t.Context(), l, far, account, deposit(10)); err != nil {
		t.Error(err)
	}
	db.checkBalance(t, 110)
	if err := migrate(t.Context(), far.DB, sqllock.WithTablePrefix("other_")); err == nil {
		t.Error("tables were made without the right to")
	}
}

// The role of this test has a lock_timeout, as the documentation recommends. If a claim waits
// for longer, PostgreSQL ends it, and Do repeats the transaction.
func TestAClaimThatALockTimeoutEndsIsDoneAgain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, postgres)
	db.DB = open(t, db.driver, db.dsn+"&lock_timeout=200")
	db.writeClaim(t, account.Key, 1, "old")
	blocker := db.begin(t, sql.LevelReadCommitted)
	if err := claimFence(t.Context(), blocker, 2); err != nil {
		t.Fatal(err)
	}
	l, _ := memory(t)
	done := make(chan error, 1)
	go func() { done <- transact(t.Context(), l, db, account, deposit(10), sqllock.WithRetries(50)) }()
	await(t, "the claim has timed out and is done again", func() bool {
		return db.number(t, "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()") > 0
	})
	_ = blocker.Rollback()
	if err := <-done; err != nil {
		t.Error(err)
	}
	db.checkBalance(t, 110)
}

func TestSpentRetriesNameTheirNumber(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		err := transact(t.Context(), l, db, account, func(context.Context, *sqllock.Tx) error {
			return tooClose(db.dialect, errOnPurpose)
		}, sqllock.WithRetries(2))
		if !errors.Is(err, sqllock.ErrRetries) || !strings.Contains(err.Error(), "gave up after 3 attempts") || !errors.Is(err, errOnPurpose) {
			t.Errorf("err = %v", err)
		}
		if err := transact(t.Context(), l, db, account, func(context.Context, *sqllock.Tx) error { return errOnPurpose }); err != errOnPurpose {
			t.Errorf("an error of the function: %v", err)
		}
	})
}

func TestAnOperationHappensOnce(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		calls := 0
		pay := func(l locker.Locker, fails error) error {
			return handle(t, l, db).Operation("invoice:4711").Do(t.Context(), account, func(ctx context.Context, tx *sqllock.Tx) error {
				calls++
				return errors.Join(deposit(10)(ctx, tx), fails)
			})
		}
		l, _ := memory(t)
		if err := pay(l, errOnPurpose); !errors.Is(err, errOnPurpose) {
			t.Error(err)
		}
		if err := pay(l, nil); err != nil {
			t.Error(err)
		}
		db.exec(t, "DELETE FROM latchkit_fence") // as if the server granted small fences again
		lost, _ := memory(t)
		for _, l := range []locker.Locker{l, lost} {
			if err := pay(l, nil); !errors.Is(err, locker.ErrDone) {
				t.Errorf("again: %v", err)
			}
		}
		if calls != 2 {
			t.Errorf("%d calls, want 2: of the failure and of the success", calls)
		}
		db.checkBalance(t, 110)
	})
}

// The lock server has lost its data, so two holders do the same work at the same time.
func TestTwoHoldersDoAnOperationOnce(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		m := newMeeting()
		errs := runTogether(2, func(i int) error {
			l, _ := memory(t)
			once := handle(t, l, db, sqllock.WithRetries(100)).Operation("invoice:4711")
			m.wait()
			rule := locker.Rule{Key: fmt.Sprintf("order:%d", i)} // the two holders even use different resources
			return once.Do(t.Context(), rule, deposit(10))
		})
		if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs...), locker.ErrDone) {
			t.Errorf("errors %v, want one ErrDone", errs)
		}
		db.checkBalance(t, 110)
	})
}
