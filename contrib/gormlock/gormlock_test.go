package gormlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/glebarez/sqlite"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/latchkit/latchkit/contrib/gormlock"
	"github.com/latchkit/latchkit/internal/sqltest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

func TestMain(m *testing.M) { os.Exit(sqltest.Main(m).Run()) }

// Account is the table of these tests.
type Account struct {
	ID      int `gorm:"primaryKey"`
	Balance int
}

var databases atomic.Int64

// open opens a database of its own of a kind, with the tables of sqllock and three accounts of 100.
func open(t *testing.T, kind string) *gorm.DB {
	t.Helper()
	name := fmt.Sprintf("gormlock_%d", databases.Add(1))
	var dialector gorm.Dialector
	quiet := &gorm.Config{Logger: logger.Discard}
	switch kind {
	case "postgres":
		server := sqltest.Shared(t, sqltest.Postgres)
		run(t, postgres.Open(server.DSN("postgres")), "CREATE SCHEMA "+name)
		dialector = postgres.Open(server.DSN("postgres") + "&search_path=" + name)
	case "mysql":
		server := sqltest.Shared(t, sqltest.MariaDB)
		run(t, mysql.Open(server.DSN("")), "CREATE DATABASE "+name)
		dialector = mysql.Open(server.DSN(name))
	default:
		dialector = sqlite.Open("file:" + filepath.Join(t.TempDir(), "test.db") + "?_pragma=busy_timeout(1000)")
	}
	db, err := gorm.Open(dialector, quiet)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := db.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	if err := errors.Join(
		gormlock.Migrate(t.Context(), db), db.AutoMigrate(&Account{}),
		db.Create([]Account{{1, 100}, {2, 100}, {3, 100}}).Error,
	); err != nil {
		t.Fatal(err)
	}
	return db
}

func run(t *testing.T, d gorm.Dialector, statement string) {
	t.Helper()
	db, err := gorm.Open(d, &gorm.Config{Logger: logger.Discard})
	if err != nil {
		t.Fatal(err)
	}
	pool, _ := db.DB()
	defer func() { _ = pool.Close() }()
	if err := db.WithContext(t.Context()).Exec(statement).Error; err != nil {
		t.Fatal(err)
	}
}

func each(t *testing.T, test func(t *testing.T, db *gorm.DB)) {
	t.Helper()
	for _, kind := range []string{"postgres", "mysql", "sqlite"} {
		t.Run(kind, func(t *testing.T) { test(t, open(t, kind)) })
	}
}

func holds(t *testing.T, db *gorm.DB, id, want int) {
	t.Helper()
	var a Account
	if err := db.First(&a, id).Error; err != nil || a.Balance != want {
		t.Errorf("account %d has %d, %v; want %d", id, a.Balance, err, want)
	}
}

func deposit(amount int) func(ctx context.Context, tx *gorm.DB) error {
	return func(_ context.Context, tx *gorm.DB) error {
		var a Account
		if err := tx.First(&a, 1).Error; err != nil {
			return err
		}
		a.Balance += amount
		return tx.Save(&a).Error
	}
}

var (
	account      = locker.Rule{Key: "account:1", TTL: 10 * time.Second}
	errOnPurpose = errors.New("on purpose")
)

func TestEachCallClaimsAndCommits(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		want := 100
		for _, strategy := range []sqllock.Strategy{sqllock.ClaimFirst, sqllock.VerifyLast} {
			opt := sqllock.WithStrategy(strategy)
			rules := []locker.Rule{account, {Key: "account:2"}}
			if err := errors.Join(
				gormlock.Do(t.Context(), l, db, account, deposit(1), opt),
				gormlock.DoAll(t.Context(), l, db, rules, deposit(10), opt),
				locker.RunAll(t.Context(), l, rules, func(ctx context.Context) error {
					return errors.Join(
						gormlock.Within(ctx, db, deposit(100), opt),
						gormlock.WithinAll(ctx, db, []string{account.Key}, deposit(1000), opt))
				}),
			); err != nil {
				t.Error(err)
			}
			want += 1111
		}
		holds(t, db, 1, want)
	})
}

// GORM is whole: Exec, Row and Rows, savepoints, and its own DB.
func TestNothingOfGORMIsMissing(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		err := gormlock.Do(t.Context(), l, db, account, func(ctx context.Context, tx *gorm.DB) error {
			if claim, ok := sqllock.ClaimFromContext(tx.Statement.Context); !ok || claim.Fence() == 0 {
				t.Errorf("the claim is %v", claim)
			}
			if result := tx.Exec("UPDATE accounts SET balance = ? WHERE id > ?", 7, 1); result.Error != nil || result.RowsAffected != 2 {
				t.Errorf("%d rows, %v", result.RowsAffected, result.Error)
			}
			var n int
			if err := tx.Raw("SELECT balance FROM accounts WHERE id = 2").Row().Scan(&n); err != nil || n != 7 {
				t.Errorf("%d, %v", n, err)
			}
			if err := tx.Transaction(func(inner *gorm.DB) error { // a savepoint
				return errors.Join(inner.Where("1 = 1").Delete(&Account{}).Error, errOnPurpose)
			}); !errors.Is(err, errOnPurpose) {
				t.Error(err)
			}
			if err := tx.Create(&Account{ID: 9, Balance: 9}).Error; err != nil {
				return err
			}
			if pool, err := tx.DB(); err != nil || pool == nil {
				t.Errorf("DB: %v", err)
			}
			if tx.Commit().Error == nil {
				t.Error("the function has committed")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		holds(t, db, 1, 100)
		holds(t, db, 9, 9)
	})
}

// GORM's habit is to drop errors. On MySQL a deadlock has rolled back what came before it, and what
// follows would be committed by itself.
func TestWhatFollowsADroppedDeadlockIsNotCommitted(t *testing.T) {
	db := open(t, "mysql")
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	var meeting sync.WaitGroup
	meeting.Add(2)
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i := range errs {
		both.Go(func() {
			rule := locker.Rule{Key: fmt.Sprintf("careless:%d", i), TTL: account.TTL}
			errs[i] = gormlock.Do(t.Context(), l, db, rule, func(_ context.Context, tx *gorm.DB) error {
				tx.Exec("UPDATE accounts SET balance = balance - 10 WHERE id = ?", 1+i)
				meeting.Done()
				meeting.Wait()
				tx.Exec("UPDATE accounts SET balance = balance - 10 WHERE id = ?", 2-i) // a deadlock
				tx.Exec("UPDATE accounts SET balance = balance + 20 WHERE id = 3")
				return nil
			}, sqllock.WithRetries(0))
		})
	}
	both.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatalf("want one deadlock, got %v", errs)
	}
	holds(t, db, 3, 120)
	var sum int
	if err := db.Raw("SELECT SUM(balance) FROM accounts").Row().Scan(&sum); err != nil || sum != 300 {
		t.Errorf("the sum is %d, %v; want 300", sum, err)
	}
}

func TestAnOvertakenHolderCommitsNothing(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
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
				if err := gormlock.Do(context.Background(), newer, db, locker.Rule{Key: "tenant"}, deposit(50)); err != nil {
					return err
				}
				return gormlock.Within(ctx, db, deposit(10))
			})
		})
		if !errors.Is(err, sqllock.ErrStaleFence) {
			t.Errorf("err = %v", err)
		}
		holds(t, db, 1, 150)
	})
}

func TestATransactionOfSomebodyElseIsClaimedIn(t *testing.T) {
	each(t, func(t *testing.T, db *gorm.DB) {
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		err := locker.Run(t.Context(), l, account, func(ctx context.Context) error {
			return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
				claim, err := gormlock.InTx(ctx, tx, sqllock.WithOperation("invoice:4711"))
				if err != nil {
					return err
				}
				if err := tx.Model(&Account{}).Where("id = ?", 1).Update("balance", 110).Error; err != nil {
					return err
				}
				return claim.Verify(ctx)
			})
		})
		if err != nil {
			t.Error(err)
		}
		holds(t, db, 1, 110)
		err = gormlock.Do(t.Context(), l, db, account, deposit(1), sqllock.WithOperation("invoice:4711"))
		if !errors.Is(err, locker.ErrDone) {
			t.Errorf("again: %v", err)
		}
	})
}

func TestATransactionIsNoDatabase(t *testing.T) {
	db := open(t, "sqlite")
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	err := gormlock.Do(t.Context(), l, db, account, func(ctx context.Context, tx *gorm.DB) error {
		return gormlock.Do(ctx, l, tx, locker.Rule{Key: "another"}, deposit(1))
	})
	if !errors.Is(err, locker.ErrUnsupported) {
		t.Errorf("err = %v", err)
	}
}
