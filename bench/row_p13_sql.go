package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver "mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/contrib/pgxlock"
	"github.com/latchkit/latchkit/internal/sqltest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// P13-sql measures what a lock and its claim add to a transaction.
var transactionsRow = row{
	name:  "P13-sql",
	title: "A transaction under a lock, beside one without",
	about: `One goroutine reads a row and updates it, in a transaction: plain, with SELECT FOR UPDATE,
inside of locker.Run, and with sqllock.Do. The databases are PostgreSQL (database/sql, and pgx with
pgxlock) and MariaDB; they do not flush to disk at each commit. FOR UPDATE is what a program writes by
hand if all that it protects is in one database: it needs no lock in Redis. "by hand" is the least
program that fences a transaction: SET NX PX, BEGIN, one upsert that claims the fence, the work,
COMMIT, and a script that deletes the key. It has no waiting, no renewal, no proof before COMMIT, no
ledger for a lost reply, and no bound for an idle transaction. With pgx, BEGIN and the claim are one
round trip. The ratios are those of the median times in the same round.`,
	run: runTransactions,
}

// transactionWay is one way to run the transaction.
type transactionWay struct {
	name, plain string // the name of this way, and of the same transaction without a lock
	run         func(ctx context.Context) error
}

func runTransactions(ctx context.Context, o order) (tbl table, err error) {
	srv, err := launchServer()
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, srv.close()) }()
	client := redis.NewClient(&redis.Options{Addr: srv.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	l, err := locker.New(client)
	if err != nil {
		return tbl, err
	}
	defer func() { err = errors.Join(err, l.Close(ctx)) }()
	var all []transactionWay
	for kind, driver := range map[sqltest.Kind]string{sqltest.Postgres: "pgx", sqltest.MariaDB: "mysql"} {
		server, launched := sqltest.Launch(kind)
		if launched != nil {
			return tbl, launched
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		ways, opened := transactionsOn(ctx, server, kind, driver, lockers{client, l})
		if opened != nil {
			return tbl, opened
		}
		all = append(all, ways...)
	}

	medians := make(map[string][]float64)
	for round := range o.rounds {
		for _, w := range all {
			progress("round %d of %d: %s", round+1, o.rounds, w.name)
			m, err := w.turn(ctx, o.turn)
			if err != nil {
				return tbl, fmt.Errorf("%s: %w", w.name, err)
			}
			medians[w.name] = append(medians[w.name], m)
		}
	}
	tbl = newTable("contestant", "p50 µs", "× plain", "× FOR UPDATE", "× by hand")
	for _, w := range all {
		own := medians[w.name]
		of := strings.TrimSuffix(w.plain, "plain")
		tbl.add(w.name, medianAndRange("%.0f", own), medianAndRange("%.2f", ratios(own, medians[w.plain])),
			medianAndRange("%.2f", ratios(own, medians[of+"FOR UPDATE"])), medianAndRange("%.2f", ratios(own, medians[of+"by hand"])))
	}
	return tbl, nil
}

const (
	bare     = "PostgreSQL, pgx plain"
	readRow  = "SELECT n FROM bench WHERE id = 1"
	lockRow  = readRow + " FOR UPDATE"
	writeRow = "UPDATE bench SET n = n + 1 WHERE id = 1"
)

// lockers has the Lockers and clients that the ways of this row use.
type lockers struct {
	client *redis.Client  // for the lock that is written by hand
	plain  *locker.Engine // a Locker of locker.New without options
}

func transactionsOn(ctx context.Context, server *sqltest.Server, kind sqltest.Kind, driver string, l lockers) ([]transactionWay, error) {
	name, database := "PostgreSQL", "postgres"
	if kind == sqltest.MariaDB {
		name, database = "MariaDB", ""
	}
	db, err := openDatabase(ctx, server, kind, driver, database)
	if err != nil {
		return nil, err
	}
	rule := locker.Rule{Key: "bench:" + name}
	plain := func(ctx context.Context) error { return plainTransaction(ctx, db, readRow) }
	do := func(h *sqllock.DB) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			return h.Do(ctx, rule, func(ctx context.Context, tx *sqllock.Tx) error { return readAndWrite(ctx, tx, readRow) })
		}
	}
	handle, err := sqllock.New(l.plain, db)
	if err != nil {
		return nil, err
	}
	ways := []transactionWay{
		{name + ", plain", name + ", plain", plain},
		{name + ", FOR UPDATE", name + ", plain", func(ctx context.Context) error { return plainTransaction(ctx, db, lockRow) }},
		{name + ", locker.Run", name + ", plain", func(ctx context.Context) error { return locker.Run(ctx, l.plain, rule, plain) }},
		{name + ", by hand", name + ", plain", runByHand(l.client, rule.Key, func(ctx context.Context, fence int64) error {
			return fencedByHand(ctx, db, kind, fence)
		})},
		{name + ", Do", name + ", plain", do(handle)},
	}
	if kind == sqltest.MariaDB {
		return ways, nil
	}
	pool, err := pgxpool.New(ctx, server.DSN(database))
	if err != nil {
		return nil, err
	}
	ofPgx, err := transactionsOfPgx(pool, rule, l)
	return append(ways, ofPgx...), err
}

// openDatabase opens a database with two groups of tables: the tables for the claims, and the
// tables for the work.
func openDatabase(ctx context.Context, server *sqltest.Server, kind sqltest.Kind, driver, database string) (*sql.DB, error) {
	db, err := sql.Open(driver, server.DSN(database))
	if err != nil {
		return nil, err
	}
	if kind == sqltest.MariaDB {
		if _, err := db.ExecContext(ctx, "CREATE DATABASE bench"); err != nil {
			return nil, err
		}
		_ = db.Close()
		if db, err = sql.Open(driver, server.DSN("bench")); err != nil {
			return nil, err
		}
	}
	h, err := sqllock.New(nil, db)
	if err != nil {
		return nil, err
	}
	if err := h.Migrate(ctx); err != nil {
		return nil, err
	}
	for _, statement := range []string{"CREATE TABLE bench (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)", "INSERT INTO bench VALUES (1, 0)"} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return nil, err
		}
	}
	return db, nil
}

// transactionsOfPgx returns the ways of a program that uses pgx without database/sql.
func transactionsOfPgx(pool *pgxpool.Pool, rule locker.Rule, l lockers) ([]transactionWay, error) {
	reading := func(query string) func(ctx context.Context, tx pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			n := 0
			if err := tx.QueryRow(ctx, query).Scan(&n); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, writeRow)
			return err
		}
	}
	work := reading(readRow)
	plain, err := pgxlock.New(l.plain, pool)
	if err != nil {
		return nil, err
	}
	return []transactionWay{
		{bare, bare, func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return work(ctx, tx) })
		}},
		{"PostgreSQL, pgx FOR UPDATE", bare, func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return reading(lockRow)(ctx, tx) })
		}},
		{"PostgreSQL, pgx by hand", bare, runByHand(l.client, rule.Key, func(ctx context.Context, fence int64) error {
			return pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
				var batch pgx.Batch
				batch.Queue("BEGIN")
				batch.Queue(claimByHand[sqltest.Postgres], "by hand", fence)
				if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
					return err
				}
				n := 0
				if err := conn.QueryRow(ctx, readRow).Scan(&n); err != nil {
					return err
				}
				if _, err := conn.Exec(ctx, writeRow); err != nil {
					return err
				}
				_, err := conn.Exec(ctx, "COMMIT")
				return err
			})
		})},
		{"PostgreSQL, pgxlock.Do", bare, func(ctx context.Context) error { return plain.Do(ctx, rule, work) }},
	}, nil
}

// claimByHand has, for each kind of database, the smallest statement that claims a fence.
var claimByHand = map[sqltest.Kind]string{
	sqltest.Postgres: `INSERT INTO latchkit_fence AS f (resource, fence, owner) VALUES ($1, $2, '')
ON CONFLICT (resource) DO UPDATE SET fence = EXCLUDED.fence WHERE f.fence < EXCLUDED.fence`,
	sqltest.MariaDB: `INSERT INTO latchkit_fence (resource, fence, owner) VALUES (?, ?, '')
ON DUPLICATE KEY UPDATE fence = GREATEST(fence, VALUES(fence))`,
}

// runByHand returns a function that runs work under the simplest lock whose fence grows.
func runByHand(client *redis.Client, key string, work func(ctx context.Context, fence int64) error) func(ctx context.Context) error {
	locks, fence := floorLocks{client: client, ttl: 30 * time.Second}, int64(0)
	return func(ctx context.Context) error {
		held, err := locks.Lock(ctx, key)
		if err != nil {
			return err
		}
		fence++
		return errors.Join(work(ctx, fence), held.Release(ctx))
	}
}

func fencedByHand(ctx context.Context, db *sql.DB, kind sqltest.Kind, fence int64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // Rollback does nothing after Commit
	if _, err := tx.ExecContext(ctx, claimByHand[kind], "by hand", fence); err != nil {
		return err
	}
	if err := readAndWrite(ctx, tx, readRow); err != nil {
		return err
	}
	return tx.Commit()
}

// queryable is a transaction of database/sql or of sqllock.
type queryable interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// readAndWrite does the work of each transaction. It reads by the given query.
func readAndWrite(ctx context.Context, tx queryable, query string) error {
	n := 0
	if err := tx.QueryRowContext(ctx, query).Scan(&n); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, writeRow)
	return err
}

func plainTransaction(ctx context.Context, db *sql.DB, query string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // Rollback does nothing after Commit
	if err := readAndWrite(ctx, tx, query); err != nil {
		return err
	}
	return tx.Commit()
}

// turn runs transactions for the time d. It returns their median duration, in µs.
func (w transactionWay) turn(ctx context.Context, d time.Duration) (float64, error) {
	var took []float64
	for began := time.Now(); time.Since(began) < d; {
		start := time.Now()
		if err := w.run(ctx); err != nil {
			return 0, err
		}
		took = append(took, float64(time.Since(start).Microseconds()))
	}
	return median(took), nil
}
