package sqllock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/sqllock"
)

// A function leaves Rows or a Row open, and drivers say that the connection is lost. Nothing is
// committed, and the error says what to look for. On SQLite, open Rows hinder no COMMIT.
func TestAFunctionThatLeavesRowsOpenIsToldSo(t *testing.T) {
	t.Parallel()
	const many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT i FROM n"
	for name, leave := range map[string]func(ctx context.Context, tx *sqllock.Tx) error{
		"Rows": func(ctx context.Context, tx *sqllock.Tx) error {
			rows, err := tx.QueryContext(ctx, many) //nolint:sqlclosecheck,rowserrcheck // the mistake
			if err == nil {
				rows.Next()
			}
			return err
		},
		"a Row": func(ctx context.Context, tx *sqllock.Tx) error { return tx.QueryRowContext(ctx, many).Err() },
	} {
		t.Run(name, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				l, _ := memory(t)
				err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
					return errors.Join(deposit(10)(ctx, tx), leave(ctx, tx))
				})
				want := int64(110)
				if db.dialect != sqlite {
					want = 100
					if !errors.Is(err, sqllock.ErrRetries) || !strings.Contains(err.Error(), "Rows or a Row that are open") {
						t.Errorf("the error is %v", err)
					}
				} else if err != nil {
					t.Error(err)
				}
				db.checkBalance(t, want)
				if err := transact(t.Context(), l, db, account, deposit(5)); err != nil {
					t.Errorf("the next transaction: %v", err)
				}
			})
		})
	}
}
