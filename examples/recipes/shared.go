package recipes

import (
	"context"
	"database/sql"
	"errors"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/optimistic"
	"github.com/latchkit/latchkit/sqllock"
)

// ErrNotEnough says that the balance is too low.
var ErrNotEnough = errors.New("the balance is too low")

// WithdrawBySQL needs no lock: one statement checks and changes the balance.
func WithdrawBySQL(ctx context.Context, pool *sql.DB, account string, cents int64) error {
	result, err := pool.ExecContext(ctx, "UPDATE accounts SET balance = balance - $1 WHERE id = $2 AND balance >= $3", cents, account, cents)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 1 {
		return err
	}
	return ErrNotEnough
}

// WithdrawUnderLock is for a decision that SQL cannot make. The database refuses the commit of a
// holder that was overtaken. allow may run again after a collision, and its transaction is open: it
// calls no other service.
func WithdrawUnderLock(ctx context.Context, db *sqllock.DB, account string, cents int64, allow func(ctx context.Context, balance int64) error) error {
	return db.Do(ctx, locker.Rule{Key: "account:" + account}, func(ctx context.Context, tx *sqllock.Tx) error {
		var balance int64
		if err := tx.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE id = $1", account).Scan(&balance); err != nil {
			return err
		}
		if err := allow(ctx, balance); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = $1 WHERE id = $2", balance-cents, account)
		return err
	})
}

// WithdrawByUpdate is for a balance in Redis. The function runs again when another client has
// written the balance meanwhile, so it has no effects outside of the value.
func WithdrawByUpdate(ctx context.Context, client *redis.Client, account string, cents int64) error {
	return optimistic.Update(ctx, client, "balance:"+account, func(_ context.Context, old []byte) ([]byte, error) {
		balance, err := strconv.ParseInt(string(old), 10, 64)
		if err != nil {
			return nil, err
		}
		if balance < cents {
			return nil, ErrNotEnough
		}
		return strconv.AppendInt(nil, balance-cents, 10), nil
	})
}
