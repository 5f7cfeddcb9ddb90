// Package sqllock_test tests sqllock on real databases. The library itself must not import their
// drivers.
package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	_ "modernc.org/sqlite"             // the driver "sqlite"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/sqltest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

func TestMain(m *testing.M) {
	// the driver would log an error for each connection that a test cuts
	_ = mysql.SetLogger(&mysql.NopLogger{})
	redistest.Main(sqltest.Main(proc.Main(m)))
}

// patience is the time-out of all waits in these tests.
const patience = 30 * time.Second

// handle returns the Handle of db for the locks of l.
func handle(t testing.TB, l locker.Locker, db sqllock.Beginner, opts ...sqllock.Option) *sqllock.DB {
	t.Helper()
	h, err := sqllock.New(l, db, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// transact calls Do of a new Handle of db for the locks of l.
func transact(
	ctx context.Context, l locker.Locker, db sqllock.Beginner, rule locker.Rule,
	fn func(ctx context.Context, tx *sqllock.Tx) error, opts ...sqllock.Option,
) error {
	h, err := sqllock.New(l, db, opts...)
	if err != nil {
		return err
	}
	return h.Do(ctx, rule, fn)
}

// transactAll is transact for several locks.
func transactAll(
	ctx context.Context, l locker.Locker, db sqllock.Beginner, rules []locker.Rule,
	fn func(ctx context.Context, tx *sqllock.Tx) error, opts ...sqllock.Option,
) error {
	h, err := sqllock.New(l, db, opts...)
	if err != nil {
		return err
	}
	return h.DoAll(ctx, rules, fn)
}

// transactWith is transact for another library.
func transactWith[T any](
	ctx context.Context, l locker.Locker, db sqllock.Database[T], rule locker.Rule,
	fn func(ctx context.Context, tx T) error, opts ...sqllock.Option,
) error {
	h, err := sqllock.NewWith(l, db, opts...)
	if err != nil {
		return err
	}
	return h.Do(ctx, rule, fn)
}

// transactWithin calls Within of a new Handle of db.
func transactWithin(
	ctx context.Context, db sqllock.Beginner, fn func(ctx context.Context, tx *sqllock.Tx) error, opts ...sqllock.Option,
) error {
	h, err := sqllock.New(nil, db, opts...)
	if err != nil {
		return err
	}
	return h.Within(ctx, fn)
}

// resolve calls Resolve of a new Handle of db.
func resolve(ctx context.Context, db sqllock.Beginner, op string) (committed bool, err error) {
	h, err := sqllock.New(nil, db)
	if err != nil {
		return false, err
	}
	return h.Resolve(ctx, op)
}

// migrate calls Migrate of a new Handle of db.
func migrate(ctx context.Context, db sqllock.Beginner, opts ...sqllock.Option) error {
	h, err := sqllock.New(nil, db, opts...)
	if err != nil {
		return err
	}
	return h.Migrate(ctx)
}

// database is a database that only one test uses. It has the tables of sqllock, and an account
// with a balance of 100.
type database struct {
	*sql.DB
	dialect sqllock.Dialect
	driver  string
	dsn     string
	addr    string // the address of the server; "": there is no server
	schema  string // the schema on PostgreSQL
}

const (
	postgres = sqllock.Postgres
	maria    = sqllock.MySQL
	sqlite   = sqllock.SQLite
)

var nameOf = map[sqllock.Dialect]string{postgres: "postgres", maria: "mysql", sqlite: "sqlite"}

// forEach runs the test once for each kind of database, on a new database. If the caller names
// kinds, forEach uses only these kinds.
func forEach(t *testing.T, test func(t *testing.T, db *database), kinds ...sqllock.Dialect) {
	t.Helper()
	if len(kinds) == 0 {
		kinds = []sqllock.Dialect{postgres, maria, sqlite}
	}
	for _, d := range kinds {
		t.Run(nameOf[d], func(t *testing.T) {
			t.Parallel()
			test(t, newDatabase(t, d))
		})
	}
}

var databases atomic.Int64

// newDatabase makes a database of the kind d.
func newDatabase(t testing.TB, d sqllock.Dialect) *database {
	t.Helper()
	name := fmt.Sprintf("test_%d", databases.Add(1))
	db := &database{dialect: d, schema: name}
	switch d {
	case postgres:
		server := sqltest.Shared(t, sqltest.Postgres)
		run(t, "pgx", server.DSN("postgres"), "CREATE SCHEMA "+name)
		db.driver, db.addr, db.dsn = "pgx", server.Addr(), server.DSN("postgres")+"&search_path="+name+"&application_name="+name
	case maria:
		server := sqltest.Shared(t, sqltest.MariaDB)
		run(t, "mysql", server.DSN(""), "CREATE DATABASE "+name)
		db.driver, db.addr, db.dsn = "mysql", server.Addr(), server.DSN(name)
	default:
		db.driver = "sqlite"
		db.dsn = "file:" + filepath.Join(t.TempDir(), name+".db") +
			"?_pragma=busy_timeout(200)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
	}
	db.DB = open(t, db.driver, db.dsn)
	if err := migrate(t.Context(), db.DB); err != nil {
		t.Fatal(err)
	}
	db.exec(t, "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, fence BIGINT NOT NULL DEFAULT 0)")
	db.exec(t, "INSERT INTO accounts (id, balance) VALUES (1, 100), (2, 100)")
	return db
}

func open(t testing.TB, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func run(t testing.TB, driver, dsn, statement string) {
	t.Helper()
	if _, err := open(t, driver, dsn).ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// exec runs a statement. While SQLite is busy, exec repeats the statement.
func (db *database) exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		_, err := db.ExecContext(t.Context(), statement, args...)
		if err == nil {
			return
		}
		if db.dialect != sqlite || time.Now().After(deadline) {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// number runs a query, and returns the number that is its result.
func (db *database) number(t testing.TB, query string) (n int64) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (db *database) balance(t testing.TB) int64 {
	t.Helper()
	return db.number(t, "SELECT balance FROM accounts WHERE id = 1")
}

// checkBalance fails the test if the balance of account 1 is not want.
func (db *database) checkBalance(t testing.TB, want int64) {
	t.Helper()
	if got := db.balance(t); got != want {
		t.Errorf("the account has %d, want %d", got, want)
	}
}

// writeClaim writes a claim of key into the table of fences, as a holder with this fence and
// owner would.
func (db *database) writeClaim(t testing.TB, key string, fence uint64, owner string) {
	t.Helper()
	db.exec(t, fmt.Sprintf("DELETE FROM latchkit_fence WHERE resource = '%s'", key))
	db.exec(t, fmt.Sprintf("INSERT INTO latchkit_fence (resource, fence, owner) VALUES ('%s', %d, '%s')", key, fence, owner))
}

// querier is the set of methods by which tests read and write: a Tx of sqllock, a Tx of
// database/sql, or a connection.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func read(ctx context.Context, q querier, id int) (balance int64, err error) {
	err = q.QueryRowContext(ctx, fmt.Sprintf("SELECT balance FROM accounts WHERE id = %d", id)).Scan(&balance)
	return balance, err
}

func write(ctx context.Context, q querier, id int, balance int64) error {
	_, err := q.ExecContext(ctx, fmt.Sprintf("UPDATE accounts SET balance = %d WHERE id = %d", balance, id))
	return err
}

// deposit returns work that would show a lost update: the work reads a balance, adds amount, and
// writes the sum.
func deposit(amount int64) func(ctx context.Context, tx *sqllock.Tx) error {
	return func(ctx context.Context, tx *sqllock.Tx) error {
		balance, err := read(ctx, tx, 1)
		if err != nil {
			return err
		}
		return write(ctx, tx, 1, balance+amount)
	}
}

// account is the Rule for the key that most tests use.
var account = locker.Rule{Key: "account:1", TTL: 10 * time.Second}

// memory makes a Store in memory. It returns a Locker on this Store, and the Store.
func memory(t testing.TB, opts ...locker.Option) (*locker.Engine, *lockertest.Memory) {
	t.Helper()
	store := lockertest.NewMemory()
	return lockertest.NewLocker(t, store, opts...), store
}

// onRedis returns a Locker on the server that all tests share.
func onRedis(t testing.TB, opts ...locker.SingleOption) *locker.Engine {
	t.Helper()
	return redisLocker(t, redistest.Shared(t), opts...)
}

func redisLocker(t testing.TB, server *redistest.Server, opts ...locker.SingleOption) *locker.Engine {
	t.Helper()
	l, err := locker.New(server.Client(t), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

// await calls cond every 5 ms until cond returns true. If the patience is over before, the test
// fails.
func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(patience); !cond(); <-look.C {
		if time.Now().After(deadline) {
			t.Fatalf("after %v still not: %s", patience, what)
		}
	}
}

var errOnPurpose = errors.New("on purpose")
