package gormlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/glebarez/sqlite"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/latchkit/latchkit/contrib/gormlock"
	"github.com/latchkit/latchkit/internal/sqltest"
	"github.com/latchkit/latchkit/internal/sqltest/adaptertest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

func TestMain(m *testing.M) { os.Exit(sqltest.Main(m).Run()) }

// Account is a row in the table of these tests.
type Account struct {
	ID      int `gorm:"primaryKey"`
	Balance int
}

var databases atomic.Int64

// open opens a new database of a kind. The database has the tables of sqllock, and three accounts
// with a balance of 100.
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
		handle(t, nil, db).Migrate(t.Context()), db.AutoMigrate(&Account{}),
		db.Create([]Account{{1, 100}, {2, 100}, {3, 100}}).Error,
	); err != nil {
		t.Fatal(err)
	}
	return db
}

// handle returns the Handle of db for the locks of l.
func handle(t *testing.T, l locker.Locker, db *gorm.DB, opts ...sqllock.Option) *sqllock.Handle[*gorm.DB] {
	t.Helper()
	h, err := gormlock.New(l, db, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return h
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

var kinds = []string{"postgres", "mysql", "sqlite"}

// onEachDatabase runs the test once on each kind of database.
func onEachDatabase(t *testing.T, test func(t *testing.T, db *gorm.DB)) {
	t.Helper()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) { test(t, open(t, kind)) })
	}
}

func checkBalance(t *testing.T, db *gorm.DB, id, want int) {
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
	account      = adaptertest.Account
	errOnPurpose = errors.New("on purpose")
)

// The adapter passes the tests of all adapters of sqllock, on all kinds of databases.
func TestAdapter(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			adaptertest.Run(t, func(t *testing.T) adaptertest.Adapter[*gorm.DB] { return adapter(open(t, kind)) })
		})
	}
}

func adapter(db *gorm.DB) adaptertest.Adapter[*gorm.DB] {
	return adaptertest.Adapter[*gorm.DB]{
		New: func(l locker.Locker, opts ...sqllock.Option) (*sqllock.Handle[*gorm.DB], error) {
			return gormlock.New(l, db, opts...)
		},
		InTx: func(ctx context.Context, h *sqllock.Handle[*gorm.DB], amount int) error {
			return db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
				claim, err := gormlock.InTx(ctx, h, tx)
				if err != nil {
					return err
				}
				return errors.Join(deposit(amount)(ctx, tx), claim.Verify(ctx), claim.Verify(ctx))
			})
		},
		Deposit: func(ctx context.Context, tx *gorm.DB, amount int) error { return deposit(amount)(ctx, tx) },
		Exec:    func(_ context.Context, tx *gorm.DB, text string) error { return tx.Exec(text).Error },
		Balance: func(t *testing.T) int {
			var a Account
			if err := db.First(&a, 1).Error; err != nil {
				t.Fatal(err)
			}
			return a.Balance
		},
	}
}

// All parts of GORM work in the transaction: Exec, Row and Rows, savepoints, and GORM's own DB.
func TestNothingOfGORMIsMissing(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *gorm.DB) {
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		err := handle(t, l, db).Do(t.Context(), account, func(ctx context.Context, tx *gorm.DB) error {
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
		checkBalance(t, db, 1, 100)
		checkBalance(t, db, 9, 9)
	})
}

// Programs often ignore the errors of GORM. After a Rollback, nothing is committed, even if the
// function returns nil.
func TestAFunctionThatCallsRollbackCommitsNothing(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *gorm.DB) {
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		for name, session := range map[string]*gorm.Session{"plain": {}, "prepared": {PrepareStmt: true}} {
			calls := 0
			err := handle(t, l, db).Do(t.Context(), account, func(ctx context.Context, tx *gorm.DB) error {
				calls++
				if err := deposit(10)(ctx, tx); err != nil {
					return err
				}
				tx.Session(session).Rollback()
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), "to roll back, return an error") || calls != 1 {
				t.Errorf("%s: %v after %d calls", name, err, calls)
			}
			err = handle(t, l, db).Do(t.Context(), account, func(_ context.Context, tx *gorm.DB) error {
				tx.Rollback()
				return errOnPurpose
			})
			if !errors.Is(err, errOnPurpose) {
				t.Errorf("%s, with an error: %v", name, err)
			}
		}
		checkBalance(t, db, 1, 100)
	})
}

// Programs often ignore the errors of GORM. On MySQL, a deadlock rolls the transaction back, and
// without sqllock the database would commit each later statement separately.
func TestWhatFollowsADroppedDeadlockIsNotCommitted(t *testing.T) {
	db := open(t, "mysql")
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	var meeting sync.WaitGroup
	meeting.Add(2)
	errs := make([]error, 2)
	once := handle(t, l, db, sqllock.WithRetries(0))
	var both sync.WaitGroup
	for i := range errs {
		both.Go(func() {
			rule := locker.Rule{Key: fmt.Sprintf("careless:%d", i), TTL: account.TTL}
			errs[i] = once.Do(t.Context(), rule, func(_ context.Context, tx *gorm.DB) error {
				tx.Exec("UPDATE accounts SET balance = balance - 10 WHERE id = ?", 1+i)
				meeting.Done()
				meeting.Wait()
				tx.Exec("UPDATE accounts SET balance = balance - 10 WHERE id = ?", 2-i) // this statement ends with a deadlock
				tx.Exec("UPDATE accounts SET balance = balance + 20 WHERE id = 3")
				return nil
			})
		})
	}
	both.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatalf("want one deadlock, got %v", errs)
	}
	checkBalance(t, db, 3, 120)
	var sum int
	if err := db.Raw("SELECT SUM(balance) FROM accounts").Row().Scan(&sum); err != nil || sum != 300 {
		t.Errorf("the sum is %d, %v; want 300", sum, err)
	}
}

// GORM sends the statements of a session with PrepareStmt to the database and not to the
// transaction, unless the transaction supports prepared statements.
func TestASessionWithPreparedStatementsStaysInTheTransaction(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *gorm.DB) {
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		err := handle(t, l, db).Do(t.Context(), account, func(ctx context.Context, tx *gorm.DB) error {
			prepared := tx.Session(&gorm.Session{PrepareStmt: true})
			return errors.Join(deposit(10)(ctx, prepared), deposit(10)(ctx, tx), errOnPurpose)
		})
		if !errors.Is(err, errOnPurpose) || errors.Is(err, gorm.ErrRecordNotFound) {
			t.Error(err)
		}
		checkBalance(t, db, 1, 100)
	})
}

// A program may keep a *gorm.DB with a condition, for example one that selects the rows of one
// tenant. The condition must also hold inside the transaction.
func TestTheConditionsOfASessionHoldInTheTransaction(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *gorm.DB) {
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		second := db.Where("id = ?", 2).Session(&gorm.Session{})
		err := handle(t, l, second).Do(t.Context(), account, func(_ context.Context, tx *gorm.DB) error {
			for range 2 {
				if err := tx.Model(&Account{}).Update("balance", gorm.Expr("balance + 5")).Error; err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		checkBalance(t, db, 1, 100)
		checkBalance(t, db, 2, 110)
		checkBalance(t, db, 3, 100)
	})
}

func TestInTxTakesATransactionWithPreparedStatements(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, db *gorm.DB) {
		l := lockertest.NewLocker(t, lockertest.NewMemory())
		err := locker.Run(t.Context(), l, account, func(ctx context.Context) error {
			prepared := db.WithContext(ctx).Session(&gorm.Session{PrepareStmt: true})
			return prepared.Transaction(func(tx *gorm.DB) error {
				claim, err := gormlock.InTx(ctx, handle(t, l, db), tx)
				if err != nil {
					return err
				}
				return errors.Join(deposit(10)(ctx, tx), claim.Verify(ctx))
			})
		})
		if err != nil {
			t.Error(err)
		}
		checkBalance(t, db, 1, 110)
	})
}

func TestATransactionIsNoDatabase(t *testing.T) {
	db := open(t, "sqlite")
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	err := handle(t, l, db).Do(t.Context(), account, func(ctx context.Context, tx *gorm.DB) error {
		_, err := gormlock.New(l, tx)
		return err
	})
	if !errors.Is(err, locker.ErrUnsupported) {
		t.Errorf("err = %v", err)
	}
}
