package sqllock

import (
	"context"
	"fmt"

	"github.com/latchkit/latchkit/locker"
)

// tables are the files of the tables, in the order of their creation.
var tables = []string{"fence_table", "ledger_table"}

// Migrate creates the two tables, unless they are there. It may run at the same time in many processes. On MySQL, which
// commits each CREATE TABLE by itself, it is done in two steps. Programs with migrations of their own take [Schema].
func Migrate(ctx context.Context, db Beginner, opts ...Option) error {
	c, err := withDB(db, nil, opts)
	if err != nil {
		return err
	}
	for pause := range betweenTries {
		err = c.migrate(ctx)
		if err == nil || !c.dialect.passing(err) || !sleep(ctx, pause, longest) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("sqllock: create the tables: %w", err)
	}
	return nil
}

func (c *call) migrate(ctx context.Context) error {
	tx, err := c.begin(ctx, nil, 0)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // does nothing after Commit
	steps := tables
	if c.stmts["alone"] != "" {
		steps = append([]string{"alone"}, tables...)
	}
	for _, step := range steps {
		if err := tx.Exec(ctx, c.stmts[step]); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}

// Schema returns the statements that create the two tables, each to be run by itself.
func Schema(d Dialect, opts ...Option) ([]string, error) {
	c, err := newCall(nil, append([]Option{WithDialect(d)}, opts...))
	if err != nil {
		return nil, err
	}
	var all []string
	for _, t := range tables {
		all = append(all, c.stmts[t])
	}
	return all, nil
}

// A FenceRaiser can make the next fence of a key large: *locker.Engine.
type FenceRaiser interface {
	RaiseFence(ctx context.Context, key string, atLeast uint64) error
}

// Repair makes the next fence of key larger than the database's, after ErrFenceRegressed. Whoever holds the lock now still
// has a small one, and is refused; the next holder is not. It never lowers a fence, so it does no harm where nothing is
// broken.
func Repair(ctx context.Context, l FenceRaiser, db Beginner, key string, opts ...Option) error {
	c, err := withDB(db, []locker.Rule{{Key: key}}, opts)
	if err != nil {
		return err
	}
	tx, err := c.begin(ctx, nil, 0)
	if err != nil {
		return err
	}
	a := &attempt{call: c, tx: tx}
	fence, _, err := a.look(ctx, key)
	a.rollback(ctx)
	if err != nil || fence == 0 {
		return err
	}
	return l.RaiseFence(ctx, key, uint64(fence))
}
