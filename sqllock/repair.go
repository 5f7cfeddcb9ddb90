package sqllock

import (
	"context"
	"errors"
	"sync"

	"github.com/latchkit/latchkit/locker"
)

// A FenceRaiser can raise the next fence of a key. *locker.Engine is a FenceRaiser.
type FenceRaiser interface {
	RaiseFence(ctx context.Context, key string, atLeast uint64) error
}

// Repair makes the next fence of key larger than the fence in the database. Call it after
// ErrFenceRegressed. The present holder of the lock still has a small fence, so its claims are
// still refused. The next holder's claim succeeds. Repair never lowers a fence, so an unnecessary
// call does no harm.
func Repair(ctx context.Context, l FenceRaiser, db Beginner, key string, opts ...Option) error {
	c, err := withDB(db, []term{{key: key, mode: locker.Exclusive}}, opts)
	if err != nil {
		return err
	}
	var fence int64
	err = c.inSeparateTx(ctx, func(tx Transaction) (err error) {
		fence, _, err = c.newestClaimIn(ctx, tx, key)
		return err
	})
	if err != nil || fence == 0 {
		return err
	}
	return l.RaiseFence(ctx, key, uint64(fence))
}

// RepairAll is [Repair] for every resource with a fence in the database, and returns how many
// resources were repaired. Use it after the lock server was restored from an old snapshot, or after
// its clock was set back. RepairAll works in pages. After an error, call it again.
func RepairAll(ctx context.Context, l FenceRaiser, db Beginner, opts ...Option) (repaired int, err error) {
	c, err := withDB(db, nil, opts)
	if err != nil {
		return 0, err
	}
	for last := ""; ; {
		var page []claimedFence
		err := c.persist(ctx, func() error {
			return c.inSeparateTx(ctx, func(tx Transaction) error {
				page, err = c.fences(ctx, tx.(*standard), last)
				return err
			})
		})
		if err != nil || len(page) == 0 {
			return repaired, err
		}
		if err := raiseAll(ctx, l, page); err != nil {
			return repaired, err
		}
		repaired, last = repaired+len(page), page[len(page)-1].resource
	}
}

// claimedFence is a resource and its fence in the database.
type claimedFence struct {
	resource string
	fence    int64
}

// fences returns the next page of fences: those of the resources that follow afterResource.
func (c *call) fences(ctx context.Context, tx *standard, afterResource string) (page []claimedFence, err error) {
	rows, err := tx.QueryContext(ctx, c.stmts["fences_all"], afterResource)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var next claimedFence
		if err := rows.Scan(&next.resource, &next.fence); err != nil {
			return nil, err
		}
		page = append(page, next)
	}
	return page, rows.Err()
}

// raisesAtOnce is how many fences are raised at the same time.
const raisesAtOnce = 16

func raiseAll(ctx context.Context, l FenceRaiser, page []claimedFence) error {
	errs := make([]error, len(page))
	tokens := make(chan struct{}, raisesAtOnce)
	var work sync.WaitGroup
	for i, next := range page {
		tokens <- struct{}{}
		work.Go(func() {
			defer func() { <-tokens }()
			errs[i] = l.RaiseFence(ctx, next.resource, uint64(next.fence))
		})
	}
	work.Wait()
	return errors.Join(errs...)
}
