package sqllock

import (
	"context"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// Purge removes operations older than age from the ledger, and returns how many it removed.
// [Resolve] cannot resolve a removed operation. Run Purge daily. age must be at least 1 h. It must
// also be longer than every transaction, and longer than every delay before a call of Resolve. Ages
// are measured by the processes' clocks.
func Purge(ctx context.Context, db Beginner, age time.Duration, opts ...Option) (removed int64, err error) {
	if age < time.Hour {
		return 0, fmt.Errorf("%w: sqllock: Purge: an age of %v; give 1h or more", locker.ErrInvalidRule, age)
	}
	return forget(ctx, db, "forget", idAt(time.Now().Add(-age)), opts)
}

// PurgeOperations removes operations of [WithOperation] older than age, and returns how many it
// removed. A removed operation can be done again. So give an age after which no caller repeats an
// operation. Ages are measured by the database's clock.
func PurgeOperations(ctx context.Context, db Beginner, age time.Duration, opts ...Option) (removed int64, err error) {
	if age < time.Hour {
		return 0, fmt.Errorf("%w: sqllock: PurgeOperations: an age of %v; give 1h or more", locker.ErrInvalidRule, age)
	}
	return forget(ctx, db, "operations_forget", seconds(age), opts)
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

// forget runs the named statement, which removes the rows that are older than its parameter older.
// It returns how many rows it removed.
func forget(ctx context.Context, db Beginner, statement string, older any, opts []Option) (removed int64, err error) {
	c, err := withDB(db, nil, opts)
	if err != nil {
		return 0, err
	}
	err = c.persist(ctx, func() error {
		return c.inSeparateTx(ctx, func(tx Transaction) error {
			removed, err = remove(ctx, tx, c.stmts[statement], older)
			return err
		})
	})
	return removed, err
}

func remove(ctx context.Context, tx Transaction, query string, args ...any) (int64, error) {
	r, err := tx.(*standard).ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// ripeAfter is how old a floor must be before fences below it are removed. After this time, no
// claim that has read an older floor is still running.
const ripeAfter = time.Hour

// PurgeFences removes the fences of resources that were not claimed for age, and returns how many
// it removed. A service needs PurgeFences if the number of its keys grows without end, for example
// with a key for each order. Run PurgeFences daily. age must be longer than every lease and every
// pause of a process, and at least 24 h. Ages are measured by the database's clock.
//
// A removed fence does not let a stale holder claim again: the largest fence that may be removed
// becomes a floor, and for every resource, claims with a fence up to the floor are refused. A claim
// under way may still have read the old floor, so a call removes fences only if the floor was
// raised at least an hour ago. In a daily job, each run therefore removes fences up to the floor
// that the run on the day before has raised. The floor is smaller than every fence that was claimed
// within age, so it does not refuse new leases. If fences of different keys cannot be compared,
// nothing is removed. An example is lockertest.Memory, whose fences begin with 1 for every key.
func PurgeFences(ctx context.Context, db Beginner, age time.Duration, opts ...Option) (removed int64, err error) {
	if age < 24*time.Hour {
		return 0, fmt.Errorf("%w: sqllock: PurgeFences: an age of %v; give 24h or more", locker.ErrInvalidRule, age)
	}
	c, err := withDB(db, nil, opts)
	if err != nil {
		return 0, err
	}
	var floor int64
	if err := c.persist(ctx, func() error {
		return c.inSeparateTx(ctx, func(tx Transaction) error {
			return tx.Row(ctx, c.stmts["floor"], []any{seconds(ripeAfter)}, &floor)
		})
	}); err != nil {
		return 0, err
	}
	for last := ""; floor > 0; {
		n, page, gone := 0, last, int64(0)
		err := c.persist(ctx, func() error {
			return c.inSeparateTx(ctx, func(tx Transaction) error {
				if err := tx.Row(ctx, c.stmts["fences_page"], []any{last, floor, seconds(age)}, &n, &page); err != nil || n == 0 {
					return err
				}
				gone, err = remove(ctx, tx, c.stmts["fences_forget"], last, page, floor, seconds(age))
				return err
			})
		})
		if err != nil {
			return removed, err
		}
		if n == 0 {
			break
		}
		removed, last = removed+gone, page
	}
	return removed, c.raiseFloor(ctx, age)
}

// raiseFloor raises the floor to the largest fence that the next call may remove.
func (c *call) raiseFloor(ctx context.Context, age time.Duration) error {
	return c.persist(ctx, func() error {
		return c.inSeparateTx(ctx, func(tx Transaction) error {
			var next int64
			if err := tx.Row(ctx, c.stmts["floor_next"], []any{seconds(age), seconds(age)}, &next); err != nil || next <= 0 {
				return err
			}
			args := []any{next}
			if c.dialect == MySQL {
				args = []any{next, next, next}
			}
			return tx.Exec(ctx, c.stmts["floor_raise"], args...)
		})
	})
}
