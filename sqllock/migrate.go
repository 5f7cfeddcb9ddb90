package sqllock

import (
	"context"
	"errors"
	"fmt"
)

// tables lists the names of the tables without the prefix, in the order of their creation. Their
// statements are in files TABLE_table.sql.
var tables = []string{"fence", "ledger", "operation", "answer"}

// Migrate creates the tables that are missing. If all tables exist, Migrate only reads them, so a
// role that must not create tables may call Migrate at every start. Many processes may run Migrate
// at the same time. MySQL commits each CREATE TABLE by itself. Programs with migrations of their
// own use [Schema].
func Migrate(ctx context.Context, db Beginner, opts ...Option) error {
	c, err := withDB(db, nil, opts)
	if err != nil {
		return err
	}
	err = c.persist(ctx, func() error {
		missing, err := c.missingTables(ctx)
		if err != nil || len(missing) == 0 {
			return err
		}
		return c.create(ctx, missing)
	})
	if err != nil {
		return fmt.Errorf("sqllock: the tables were not created; if this role must not create tables, run the statements of sqllock.Schema as another role: %w", err)
	}
	return nil
}

// missingTables returns the tables that do not exist. It checks each table in a separate
// transaction, because PostgreSQL ends a transaction with its first error.
func (c *call) missingTables(ctx context.Context) (missing []string, err error) {
	for _, table := range tables {
		err := c.inSeparateTx(ctx, func(tx Transaction) error {
			n := 0
			return tx.Row(ctx, "SELECT COUNT(*) FROM "+c.prefix+table+" WHERE 1 = 0", nil, &n)
		})
		switch {
		case c.dialect.isMissingTable(err):
			missing = append(missing, table)
		case err != nil:
			return nil, err
		}
	}
	return missing, nil
}

func (c *call) create(ctx context.Context, missing []string) error {
	_, tx, err := c.begin(ctx, nil)
	if err != nil {
		return err
	}
	run := func() error {
		if alone := c.stmts["alone"]; alone != "" {
			if err := tx.Exec(ctx, alone); err != nil {
				return err
			}
		}
		for _, statement := range c.createStatements(missing) {
			if err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	}
	if err := run(); err != nil {
		return errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
	}
	return tx.Commit(ctx)
}

// Schema returns the statements that create the tables, for migration tools and for roles that may
// create tables. Run each statement separately. A statement does nothing if its table exists.
func Schema(d Dialect, opts ...Option) ([]string, error) {
	c, err := newCall(nil, append([]Option{WithDialect(d)}, opts...))
	if err != nil {
		return nil, err
	}
	return c.createStatements(tables), nil
}

// createStatements returns the statements that create the missing tables and their first rows.
func (c *call) createStatements(missing []string) (all []string) {
	for _, table := range missing {
		for _, file := range []string{table + "_table", table + "_seed"} {
			if statement := c.stmts[file]; statement != "" {
				all = append(all, statement)
			}
		}
	}
	return all
}
