package sqllock_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

var isolations = []sql.IsolationLevel{
	sql.LevelDefault, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable,
}

// A resource that was never claimed has no row yet. Its first claim must not wait for the first
// claims of other resources, whatever the isolation.
func TestFirstClaimsOfDifferentKeysRunTogether(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		for _, level := range isolations {
			isolation := sqllock.WithTxOptions(&sql.TxOptions{Isolation: level})
			for _, key := range []string{"a", "z"} { // before and behind the row that is there
				open := func(ctx context.Context, _ *sqllock.Tx) error {
					ctx, cancel := context.WithTimeout(locker.Detach(ctx), patience)
					defer cancel()
					rule := locker.Rule{Key: level.String() + key}
					return sqllock.Do(ctx, l, db, rule, deposit(0), isolation)
				}
				rule := locker.Rule{Key: level.String() + "m" + key}
				if err := sqllock.Do(t.Context(), l, db, rule, open, isolation); err != nil {
					t.Errorf("%v, %s: %v", level, key, err)
				}
			}
		}
	}, postgres, maria)
}
