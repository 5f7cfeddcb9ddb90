package sqlxlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/glebarez/go-sqlite"  // the driver "sqlite"
	_ "github.com/go-sql-driver/mysql" // the driver "mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/jmoiron/sqlx"

	"github.com/latchkit/latchkit/contrib/sqlxlock"
	"github.com/latchkit/latchkit/internal/sqltest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

func TestMain(m *testing.M) { os.Exit(sqltest.Main(m).Run()) }

var databases atomic.Int64

// each runs the test on each kind of database, with the tables of sqllock and two accounts of 100.
func each(t *testing.T, test func(t *testing.T, db *sqlx.DB)) {
	t.Helper()
	for _, driver := range []string{"pgx", "mysql", "sqlite"} {
		t.Run(driver, func(t *testing.T) {
			name := fmt.Sprintf("sqlxlock_%d", databases.Add(1))
			var dsn string
			switch driver {
			case "pgx":
				server := sqltest.Shared(t, sqltest.Postgres)
				run(t, driver, server.DSN("postgres"), "CREATE SCHEMA "+name)
				dsn = server.DSN("postgres") + "&search_path=" + name
			case "mysql":
				server := sqltest.Shared(t, sqltest.MariaDB)
				run(t, driver, server.DSN(""), "CREATE DATABASE "+name)
				dsn = server.DSN(name)
			default:
				dsn = "file:" + filepath.Join(t.TempDir(), "test.db") + "?_pragma=busy_timeout(1000)"
			}
			db := sqlx.MustOpen(driver, dsn)
			t.Cleanup(func() { _ = db.Close() })
			if err := sqllock.Migrate(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			db.MustExec("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")
			db.MustExec("INSERT INTO accounts (id, balance) VALUES (1, 100), (2, 100)")
			test(t, db)
		})
	}
}

func run(t *testing.T, driver, dsn, statement string) {
	t.Helper()
	db := sqlx.MustOpen(driver, dsn)
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

type row struct {
	ID      int `db:"id"`
	Balance int `db:"balance"`
}

func holds(t *testing.T, db *sqlx.DB, want int) {
	t.Helper()
	var a row
	if err := db.GetContext(t.Context(), &a, "SELECT * FROM accounts WHERE id = 1"); err != nil || a.Balance != want {
		t.Errorf("the account has %d, %v; want %d", a.Balance, err, want)
	}
}

func deposit(amount int) func(ctx context.Context, tx *sqlxlock.Tx) error {
	return func(ctx context.Context, tx *sqlxlock.Tx) error {
		var a row
		if err := tx.GetContext(ctx, &a, tx.Rebind("SELECT * FROM accounts WHERE id = ?"), 1); err != nil {
			return err
		}
		a.Balance += amount
		_, err := tx.NamedExecContext(ctx, "UPDATE accounts SET balance = :balance WHERE id = :id", a)
		return err
	}
}

var account = locker.Rule{Key: "account:1", TTL: 10 * time.Second}

func TestEachCallClaimsAndCommits(t *testing.T) {
	each(t, func(t *testing.T, db *sqlx.DB) {
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		want := 100
		for _, strategy := range []sqllock.Strategy{sqllock.ClaimFirst, sqllock.VerifyLast} {
			opt := sqllock.WithStrategy(strategy)
			rules := []locker.Rule{account, {Key: "account:2"}}
			if err := errors.Join(
				sqlxlock.Do(t.Context(), l, db, account, deposit(1), opt),
				sqlxlock.DoAll(t.Context(), l, db, rules, deposit(10), opt),
				locker.RunAll(t.Context(), l, rules, func(ctx context.Context) error {
					return errors.Join(
						sqlxlock.Within(ctx, db, deposit(100), opt),
						sqlxlock.WithinAll(ctx, db, []string{account.Key}, deposit(1000), opt))
				}),
			); err != nil {
				t.Error(err)
			}
			want += 1111
		}
		holds(t, db, want)
	})
}

// The *sqlx.Tx is sqlx's own: it binds names as the driver wants them, and its other methods work.
func TestNothingOfSqlxIsMissing(t *testing.T) {
	each(t, func(t *testing.T, db *sqlx.DB) {
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		err := sqlxlock.Do(t.Context(), l, db, account, func(ctx context.Context, tx *sqlxlock.Tx) error {
			if tx.Fence() == 0 || tx.Op() == "" || tx.DriverName() != db.DriverName() {
				t.Errorf("fence %d, operation %q, driver %q", tx.Fence(), tx.Op(), tx.DriverName())
			}
			rows, err := tx.NamedQuery("SELECT * FROM accounts WHERE id = :id", row{ID: 2})
			if err != nil {
				return err
			}
			var a row
			for rows.Next() {
				err = errors.Join(err, rows.StructScan(&a))
			}
			if err := errors.Join(err, rows.Close()); err != nil || a.Balance != 100 {
				t.Errorf("%+v, %v", a, err)
			}
			stmt, err := tx.PrepareNamedContext(ctx, "UPDATE accounts SET balance = :balance WHERE id = :id")
			if err != nil {
				return err
			}
			defer func() { _ = stmt.Close() }()
			_, err = stmt.ExecContext(ctx, row{1, 7})
			var all []row
			return errors.Join(err, tx.SelectContext(ctx, &all, "SELECT * FROM accounts"))
		})
		if err != nil {
			t.Error(err)
		}
		holds(t, db, 7)
	})
}

func TestAnOvertakenHolderCommitsNothing(t *testing.T) {
	each(t, func(t *testing.T, db *sqlx.DB) {
		store := lockertest.NewMemory()
		l := lockertest.NewLocker(t, store)
		newer, err := locker.New(store.NewProcess())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = newer.Close(context.Background()) }()
		err = locker.Run(t.Context(), l, locker.Rule{Key: "tenant"}, func(ctx context.Context) error {
			return locker.Run(ctx, l, account, func(ctx context.Context) error {
				store.Free("tenant")
				if err := sqlxlock.Do(context.Background(), newer, db, locker.Rule{Key: "tenant"}, deposit(50)); err != nil {
					return err
				}
				return sqlxlock.Within(ctx, db, deposit(10))
			})
		})
		if !errors.Is(err, sqllock.ErrStaleFence) {
			t.Errorf("err = %v", err)
		}
		holds(t, db, 150)
	})
}

// Nothing stays on a connection of the pool, also when the function ends the transaction.
func TestThePoolsConnectionsAreAsTheyWere(t *testing.T) {
	each(t, func(t *testing.T, db *sqlx.DB) {
		db.SetMaxOpenConns(1)
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		for name, end := range map[string]func(tx *sqlxlock.Tx) error{
			"committed":                  func(*sqlxlock.Tx) error { return nil },
			"rolled back":                func(*sqlxlock.Tx) error { return errors.New("on purpose") },
			"committed by the function":  func(tx *sqlxlock.Tx) error { return tx.Commit() },
			"rolled back in a statement": func(tx *sqlxlock.Tx) error { _, err := tx.Exec("ROLLBACK"); return err },
		} {
			_ = sqlxlock.Do(t.Context(), l, db, account, func(_ context.Context, tx *sqlxlock.Tx) error { return end(tx) })
			if db.DriverName() == "mysql" {
				var autocommit, timeout int
				if err := db.QueryRowContext(t.Context(), "SELECT @@SESSION.autocommit, @@SESSION.wait_timeout").Scan(&autocommit, &timeout); err != nil {
					t.Fatal(err)
				}
				if autocommit != 1 || timeout < 1000 {
					t.Errorf("%s: autocommit %d, wait_timeout %d", name, autocommit, timeout)
				}
			}
			if err := sqlxlock.Do(t.Context(), l, db, account, deposit(0)); err != nil {
				t.Errorf("after %s: %v", name, err)
			}
		}
	})
}

func TestATransactionOfSomebodyElseIsClaimedIn(t *testing.T) {
	each(t, func(t *testing.T, db *sqlx.DB) {
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		err := locker.Run(t.Context(), l, account, func(ctx context.Context) error {
			tx := db.MustBeginTx(ctx, nil)
			defer func() { _ = tx.Rollback() }()
			claim, err := sqlxlock.InTx(ctx, tx, sqllock.WithOperation("invoice:4711"))
			if err != nil {
				return err
			}
			tx.MustExec("UPDATE accounts SET balance = 110 WHERE id = 1")
			if err := errors.Join(claim.Verify(ctx), claim.Verify(ctx)); err != nil {
				return err
			}
			return tx.Commit()
		})
		if err != nil {
			t.Error(err)
		}
		holds(t, db, 110)
		err = sqlxlock.Do(t.Context(), l, db, account, deposit(1), sqllock.WithOperation("invoice:4711"))
		if !errors.Is(err, locker.ErrDone) {
			t.Errorf("again: %v", err)
		}
	})
}
