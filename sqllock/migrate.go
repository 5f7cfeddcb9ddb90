package sqllock

import (
	"context"
	"fmt"
	"slices"
)

// tables lists the names of the tables without the prefix, in the order of their creation. Their
// statements are in files TABLE_table.sql.
var tables = []string{"fence", "ledger", "operation", "answer"}

// Migrate creates the tables that are missing. If all tables exist, Migrate only reads them, so a
// role that must not create tables may call Migrate at every start. Many processes may run Migrate
// at the same time. MySQL commits each CREATE TABLE by itself. Programs with migrations of their
// own use [Schema].
func (h *Handle[T]) Migrate(ctx context.Context) error {
	err := h.persist(ctx, func() error {
		missing, err := h.missingTables(ctx)
		if err != nil || len(missing) == 0 {
			return err
		}
		return h.create(ctx, missing)
	})
	if err != nil {
		return fmt.Errorf("sqllock: the tables were not created; if this role must not create tables, run the statements of sqllock.Schema as another role: %w", err)
	}
	return nil
}

// missingTables returns the tables that do not exist. It checks each table in a separate
// transaction, because PostgreSQL ends a transaction with its first error.
func (b *base) missingTables(ctx context.Context) (missing []string, err error) {
	for _, table := range tables {
		err := b.inSeparateTx(ctx, func(tx Transaction) error {
			n := 0
			return tx.Row(ctx, "SELECT COUNT(*) FROM "+b.prefix+table+" WHERE 1 = 0", nil, &n)
		})
		switch {
		case b.dialect.isMissingTable(err):
			missing = append(missing, table)
		case err != nil:
			return nil, err
		}
	}
	return missing, nil
}

func (b *base) create(ctx context.Context, missing []string) error {
	statements := b.stmts.create(missing)
	if alone := b.stmts["alone"]; alone != "" {
		statements = slices.Insert(statements, 0, alone)
	}
	return b.inSeparateTx(ctx, func(tx Transaction) error {
		for _, statement := range statements {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
}

// Schema returns the statements that create the tables, for migration tools and for roles that may
// create tables. Run each statement separately. A statement does nothing if its table exists.
func Schema(d Dialect, opts ...Option) ([]string, error) {
	b, err := newBase(nil, d, nil, opts)
	if err != nil {
		return nil, err
	}
	return b.stmts.create(tables), nil
}

// create returns the statements that create the missing tables and their first rows.
func (s statements) create(missing []string) (all []string) {
	for _, table := range missing {
		for _, file := range []string{table + "_table", table + "_seed"} {
			if statement := s[file]; statement != "" {
				all = append(all, statement)
			}
		}
	}
	return all
}
