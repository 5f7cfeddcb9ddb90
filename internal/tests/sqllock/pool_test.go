package sqllock_test

import (
	"context"
	"database/sql"
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
