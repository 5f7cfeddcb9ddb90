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

// TestWaitersKeepNoConnections measures how long other work waits for a connection while 200
// callers wait for a lock. The pool has 5 connections. In the first part of the test, the
// transactions begin before the lock is taken, as in many programs. In the second part, the
// callers use sqllock.Do, which takes the lock before it takes a connection.
func TestWaitersKeepNoConnections(t *testing.T) {
	t.Parallel()
	const (
		waiters = 200
		held    = 700 * time.Millisecond
	)
	crowd := func(t *testing.T, db *database, call func(ctx context.Context, l locker.Locker) error) (waited time.Duration, inUse int) {
		t.Helper()
		l, _ := memory(t, locker.WithFair())
		lease, err := l.Acquire(t.Context(), account)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range waiters {
			wg.Go(func() {
				if err := call(t.Context(), l); err != nil {
					t.Error(err)
				}
			})
		}
		<-time.After(held / 7) // by now, most callers wait
		time.AfterFunc(held, func() { _ = lease.Release(context.WithoutCancel(t.Context())) })
		began := time.Now()
		inUse = db.Stats().InUse
		db.number(t, "SELECT count(*) FROM accounts")
		waited = time.Since(began)
		wg.Wait()
		return waited, inUse
	}

	forEach(t, func(t *testing.T, db *database) {
		db.SetMaxOpenConns(5)
		waited, inUse := crowd(t, db, func(ctx context.Context, l locker.Locker) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			return locker.Run(ctx, l, account, func(context.Context) error { return tx.Commit() })
		})
		t.Logf("a transaction first: a query waited %v, %d of 5 connections were in use", waited, inUse)
		if inUse != 5 || waited < held/7 {
			t.Errorf("the control was not starved: %d connections in use, a query waited %v", inUse, waited)
		}
		db.checkBalance(t, 100)

		waited, inUse = crowd(t, db, func(ctx context.Context, l locker.Locker) error {
			return transact(ctx, l, db, account, deposit(1))
		})
		t.Logf("the lock first: a query waited %v, %d of 5 connections were in use", waited, inUse)
		if inUse != 0 {
			t.Errorf("%d connections are kept by callers who wait for the lock", inUse)
		}
		db.checkBalance(t, 100+waiters)
	}, postgres)
}

func TestOneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		db.SetMaxOpenConns(1)
		l, _ := memory(t)
		if err := transact(t.Context(), l, db, account, deposit(1)); err != nil {
			t.Error(err)
		}
		if err := transact(t.Context(), l, db, account, deposit(1), sqllock.WithTxOptions(&sql.TxOptions{Isolation: sql.LevelDefault})); err != nil {
			t.Error(err)
		}
		db.checkBalance(t, 102)
	})
}

// After a restart of the server, the connections of a pool are dead. database/sql skips such
// connections, and Do skips them, too.
func TestDeadConnectionsOfThePoolArePassedOver(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		const idle = 10
		pool := &database{DB: open(t, db.driver, db.dsn), dialect: db.dialect}
		pool.SetMaxIdleConns(idle)
		l, _ := memory(t)
		var conns []*sql.Conn
		var ids []int64
		for range idle {
			conn, err := pool.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var id int64
			if err := conn.QueryRowContext(t.Context(), map[sqllock.Dialect]string{postgres: "SELECT pg_backend_pid()", maria: "SELECT connection_id()"}[db.dialect]).Scan(&id); err != nil {
				t.Fatal(err)
			}
			conns, ids = append(conns, conn), append(ids, id)
		}
		var all sync.WaitGroup
		for _, conn := range conns {
			all.Go(func() { _ = conn.Close() })
		}
		all.Wait()
		for _, id := range ids {
			db.exec(t, fmt.Sprintf(map[sqllock.Dialect]string{postgres: "SELECT pg_terminate_backend(%d)", maria: "KILL %d"}[db.dialect], id))
		}
		ran := 0
		if err := transact(t.Context(), l, pool, account, func(ctx context.Context, tx *sqllock.Tx) error {
			ran++
			return deposit(1)(ctx, tx)
		}, sqllock.WithRetries(0)); err != nil || ran != 1 {
			t.Errorf("%v after %d calls", err, ran)
		}
		db.checkBalance(t, 101)
	}, postgres, maria)
}

// BenchmarkDo measures the claim and the ledger, and compares them with the same work in a plain
// transaction.
func BenchmarkDo(b *testing.B) {
	for _, d := range []sqllock.Dialect{postgres, maria, sqlite} {
		db := newDatabase(b, d)
		l, _ := memory(b)
		b.Run(nameOf[d]+"/transaction", func(b *testing.B) {
			for b.Loop() {
				tx, err := db.BeginTx(b.Context(), nil)
				if err != nil {
					b.Fatal(err)
				}
				if err := write(b.Context(), tx, 1, 1); err != nil {
					b.Fatal(err)
				}
				if err := tx.Commit(); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(nameOf[d]+"/Do", func(b *testing.B) {
			for b.Loop() {
				if err := transact(b.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error { return write(ctx, tx, 1, 1) }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A *sql.Conn has one transaction at a time. A second one, of another goroutine, must be refused
// also between the check that none is open and BEGIN.
func TestGoroutinesDoNotShareATransactionOfOneConn(t *testing.T) {
	forEach(t, func(t *testing.T, db *database) {
		const rounds = 30
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		l, _ := memory(t)
		h := handle(t, l, conn)
		for i, err := range runTogether(2, func(i int) error {
			for n := 0; n < rounds && ctx.Err() == nil; {
				err := h.Operation(fmt.Sprint(i, n)).Do(ctx, locker.Rule{Key: fmt.Sprint(i)}, func(ctx context.Context, tx *sqllock.Tx) error {
					for range 2 {
						if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE accounts SET balance = balance + 1 WHERE id = %d", 1+i)); err != nil {
							return err
						}
					}
					return nil
				})
				switch {
				case err == nil:
					n++
				case !errors.Is(err, locker.ErrUnsupported):
					return err
				}
			}
			return nil
		}) {
			if err != nil {
				t.Errorf("goroutine %d: %v", i, err)
			}
		}
		if n := db.number(t, "SELECT sum(balance) FROM accounts"); n != 200+2*2*rounds {
			t.Errorf("the sum is %d, want %d", n, 200+2*2*rounds)
		}
		if db.dialect == maria {
			var n int64
			if err := conn.QueryRowContext(t.Context(), "SELECT @@autocommit").Scan(&n); err != nil || n != 1 {
				t.Errorf("autocommit is %d, %v", n, err)
			}
		}
	})
}
