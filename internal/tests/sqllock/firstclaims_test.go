package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

var isolations = []sql.IsolationLevel{
	sql.LevelDefault, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable,
}

// If a resource was never claimed, it has no row yet. Its first claim must not wait for the first
// claims of other resources, at any isolation level.
func TestFirstClaimsOfDifferentKeysRunTogether(t *testing.T) {
	t.Parallel()
	for _, d := range []sqllock.Dialect{postgres, maria} {
		for _, level := range isolations {
			t.Run(nameOf[d]+" "+level.String(), func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t, d)
				l, _ := memory(t)
				isolation := sqllock.WithTxOptions(&sql.TxOptions{Isolation: level})
				open := func(ctx context.Context, _ *sqllock.Tx) (err error) {
					for _, key := range []string{"a", "z"} { // in the order of the index, "a" comes before the key of the open claim, and "z" comes after this key
						ctx, cancel := context.WithTimeout(locker.Detach(ctx), patience)
						defer cancel()
						nothing := func(context.Context, *sqllock.Tx) error { return nil }
						err = errors.Join(err, transact(ctx, l, db, locker.Rule{Key: key}, nothing, isolation))
					}
					return err
				}
				if err := transact(t.Context(), l, db, locker.Rule{Key: "m"}, open, isolation); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
