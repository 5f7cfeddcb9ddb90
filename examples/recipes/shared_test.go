package recipes_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/latchkit/latchkit/examples/recipes"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// Twenty callers of two pods each withdraw 100 of 1000. By each way, ten of them succeed and the
// balance is 0.
func TestABalanceNeverFallsBelowZero(t *testing.T) {
	t.Parallel()
	pool, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "bank.db")+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pool.Close() })
	pods := newPods(t)
	banks := make(map[*locker.Engine]*sqllock.DB)
	for _, p := range pods {
		if banks[p.l], err = sqllock.New(p.l, pool); err != nil {
			t.Fatal(err)
		}
	}
	if err := banks[pods[0].l].Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.ExecContext(t.Context(), "CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INTEGER)"); err != nil {
		t.Fatal(err)
	}
	enough := func(_ context.Context, balance int64) error {
		if balance < 100 {
			return recipes.ErrNotEnough
		}
		return nil
	}
	for account, withdraw := range map[string]func(p pod) error{
		"sql":  func(p pod) error { return recipes.WithdrawBySQL(t.Context(), pool, "sql", 100) },
		"lock": func(p pod) error { return recipes.WithdrawUnderLock(t.Context(), banks[p.l], "lock", 100, enough) },
		"update": func(p pod) error {
			return recipes.WithdrawByUpdate(t.Context(), p.redis, t.Name(), 100)
		},
	} {
		if _, err := pool.ExecContext(t.Context(), "INSERT INTO accounts VALUES ($1, 1000)", account); err != nil {
			t.Fatal(err)
		}
		if err := pods[0].redis.Set(t.Context(), "balance:"+t.Name(), 1000, 0).Err(); err != nil {
			t.Fatal(err)
		}
		var paid atomic.Int32
		together(pods, 10, func(p pod) {
			switch err := withdraw(p); {
			case err == nil:
				paid.Add(1)
			case !errors.Is(err, recipes.ErrNotEnough):
				t.Errorf("%s: %v", account, err)
			}
		})
		left, err := pods[0].redis.Get(t.Context(), "balance:"+t.Name()).Int()
		if account != "update" {
			err = pool.QueryRowContext(t.Context(), "SELECT balance FROM accounts WHERE id = $1", account).Scan(&left)
		}
		if err != nil || paid.Load() != 10 || left != 0 {
			t.Errorf("%s: %d withdrawals, %d left, %v", account, paid.Load(), left, err)
		}
	}
}
