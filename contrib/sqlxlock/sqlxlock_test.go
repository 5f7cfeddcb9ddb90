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
	"github.com/latchkit/latchkit/internal/sqltest/adaptertest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

func TestMain(m *testing.M) { os.Exit(sqltest.Main(m).Run()) }

var databases atomic.Int64

var drivers = []string{"pgx", "mysql", "sqlite"}

// onEachDatabase runs the test once on each kind of database.
func onEachDatabase(t *testing.T, test func(t *testing.T, db *sqlx.DB)) {
	t.Helper()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) { test(t, open(t, driver)) })
	}
}

// open makes a database of a kind, with the tables of sqllock and two accounts with a balance of
// 100.
func open(t *testing.T, driver string) *sqlx.DB {
	t.Helper()
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
		dsn = "file:" + filepath.Join(t.TempDir(), "test.db") + "?_pragma=busy_timeout(200)"
	}
	db := sqlx.MustOpen(driver, dsn)
	t.Cleanup(func() { _ = db.Close() })
	if err := handle(t, nil, db).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.MustExec("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")
	db.MustExec("INSERT INTO accounts (id, balance) VALUES (1, 100), (2, 100)")
	return db
}

// handle returns the Handle of db for the locks of l.
func handle(t *testing.T, l locker.Locker, db *sqlx.DB) *sqllock.Handle[*sqlx.Tx] {
	t.Helper()
	h, err := sqlxlock.New(l, db)
	if err != nil {
		t.Fatal(err)
	}
	return h
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

func checkBalance(t *testing.T, db *sqlx.DB, want int) {
	t.Helper()
	var a row
	if err := db.GetContext(t.Context(), &a, "SELECT * FROM accounts WHERE id = 1"); err != nil || a.Balance != want {
		t.Errorf("the account has %d, %v; want %d", a.Balance, err, want)
	}
}

func deposit(amount int) func(ctx context.Context, tx *sqlx.Tx) error {
	return func(ctx context.Context, tx *sqlx.Tx) error {
		var a row
		if err := tx.GetContext(ctx, &a, tx.Rebind("SELECT * FROM accounts WHERE id = ?"), 1); err != nil {
			return err
		}
		a.Balance += amount
		_, err := tx.NamedExecContext(ctx, "UPDATE accounts SET balance = :balance WHERE id = :id", a)
		return err
	}
}

var account = adaptertest.Account

// The adapter passes the tests of all adapters of sqllock, on all kinds of databases.
func TestAdapter(t *testing.T) {
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			adaptertest.Run(t, func(t *testing.T) adaptertest.Adapter[*sqlx.Tx] { return adapter(open(t, driver)) })
		})
	}
}

func adapter(db *sqlx.DB) adaptertest.Adapter[*sqlx.Tx] {
	return adaptertest.Adapter[*sqlx.Tx]{
		New: func(l locker.Locker, opts ...sqllock.Option) (*sqllock.Handle[*sqlx.Tx], error) {
			return sqlxlock.New(l, db, opts...)
		},
		InTx: func(ctx context.Context, h *sqllock.Handle[*sqlx.Tx], amount int) error {
			tx, err := db.BeginTxx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }() // after Commit, this Rollback has no effect
			claim, err := h.InTx(ctx, tx.Tx)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, tx.Rebind("UPDATE accounts SET balance = balance + ? WHERE id = 1"), amount)
			if err := errors.Join(err, claim.Verify(ctx), claim.Verify(ctx)); err != nil {
				return err
			}
			return tx.Commit()
		},
		Deposit: func(ctx context.Context, tx *sqlx.Tx, amount int) error { return deposit(amount)(ctx, tx) },
		Exec: func(ctx context.Context, tx *sqlx.Tx, text string) error {
			_, err := tx.ExecContext(ctx, text)
			return err
		},
		Balance: func(t *testing.T) int {
			var a row
			if err := db.GetContext(t.Context(), &a, "SELECT * FROM accounts WHERE id = 1"); err != nil {
				t.Fatal(err)
			}
			return a.Balance
		},
	}
}

// The end of ctx ends the wait for a connection, so the lock does not stay with a caller that left.
func TestTheEndOfCtxEndsTheWaitForAConnection(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		db.SetMaxOpenConns(1)
		conn, err := db.Connx(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		h := handle(t, l, db)
		for name, call := range map[string]func(ctx context.Context) error{
			"Do":    func(ctx context.Context) error { return h.Do(ctx, account, deposit(1)) },
			"Purge": func(ctx context.Context) error { _, err := h.Purge(ctx, sqllock.Ages{}); return err },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			back := make(chan error, 1)
			go func() { back <- call(ctx) }()
			select {
			case err := <-back:
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", name, err)
				}
			case <-time.After(10 * time.Second):
				t.Errorf("%s is not back after 10 s", name)
			}
			cancel()
		}
		_ = conn.Close()
		if err := h.Do(t.Context(), account, deposit(1)); err != nil {
			t.Error(err)
		}
		checkBalance(t, db, 101)
	})
}

// On SQLite, a COMMIT fails while another process reads, and the driver of glebarez leaves the
// transaction open. Later statements of the pool must not become a part of it: they would be lost.
func TestABusyCommitLeavesNoTransactionOnItsConnection(t *testing.T) {
	db := open(t, "sqlite")
	db.SetMaxOpenConns(1)
	reader := sqlx.MustOpen("sqlite", fileOf(t, db))
	defer func() { _ = reader.Close() }()
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	standard, err := sqllock.New(l, db.DB)
	if err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"sqlxlock": func() error { return handle(t, l, db).Do(t.Context(), account, deposit(1)) },
		"sqllock": func() error {
			return standard.Do(t.Context(), account, func(ctx context.Context, tx *sqllock.Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + 1 WHERE id = 1")
				return err
			})
		},
	} {
		rows, err := reader.QueryContext(t.Context(), "SELECT id FROM accounts")
		if err != nil || !rows.Next() {
			t.Fatal("there is no reader: ", err)
		}
		if err := do(); !errors.Is(err, sqllock.ErrRetries) {
			t.Errorf("%s while another process reads: %v, want ErrRetries", name, err)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
		db.MustExec("UPDATE accounts SET balance = balance + 10 WHERE id = 1")
	}
	checkBalance(t, reader, 120) // the reader has a connection of its own, which sees what is committed
}

// fileOf returns the file of an SQLite database.
func fileOf(t *testing.T, db *sqlx.DB) (path string) {
	t.Helper()
	if err := db.GetContext(t.Context(), &path, "SELECT file FROM pragma_database_list WHERE name = 'main'"); err != nil {
		t.Fatal(err)
	}
	return path
}

// If sqllock has changed a setting, the connection goes back to the pool with the old setting, even
// if the function has ended the transaction.
func TestThePoolsConnectionsAreAsTheyWere(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *sqlx.DB) {
		db.SetMaxOpenConns(1)
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		for name, end := range map[string]func(tx *sqlx.Tx) error{
			"committed":                  func(*sqlx.Tx) error { return nil },
			"rolled back":                func(*sqlx.Tx) error { return errors.New("on purpose") },
			"committed by the function":  func(tx *sqlx.Tx) error { return tx.Commit() },
			"rolled back in a statement": func(tx *sqlx.Tx) error { _, err := tx.Exec("ROLLBACK"); return err },
		} {
			_ = handle(t, l, db).Do(t.Context(), account, func(_ context.Context, tx *sqlx.Tx) error { return end(tx) })
			if db.DriverName() == "mysql" {
				var autocommit, timeout int
				if err := db.QueryRowContext(t.Context(), "SELECT @@SESSION.autocommit, @@SESSION.wait_timeout").Scan(&autocommit, &timeout); err != nil {
					t.Fatal(err)
				}
				if autocommit != 1 || timeout < 1000 {
					t.Errorf("%s: autocommit %d, wait_timeout %d", name, autocommit, timeout)
				}
			}
			if err := handle(t, l, db).Do(t.Context(), account, deposit(0)); err != nil {
				t.Errorf("after %s: %v", name, err)
			}
		}
	})
}
