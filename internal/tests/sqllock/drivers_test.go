package sqllock_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

func TestWhateverBeginsTransactionsIsKnownByItsDriver(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		for name, beginner := range map[string]sqllock.Beginner{
			"sql.DB": db.DB, "sqlx.DB": sqlx.NewDb(db.DB, db.driver), "a struct around it": db,
		} {
			before := db.balance(t)
			if err := transact(t.Context(), l, beginner, account, deposit(1)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			db.checkBalance(t, before+1)
		}
		unknown := beginner{db, func() {}}
		if err := transact(t.Context(), l, unknown, account, deposit(1)); !errors.Is(err, locker.ErrUnsupported) || !strings.Contains(err.Error(), "WithDialect") {
			t.Errorf("an unknown one: %v", err)
		}
	})
}

func TestTablesAreMadeByManyAtOnceAndUnderAnyName(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		prefix := sqllock.WithTablePrefix("my_")
		for _, err := range runTogether(16, func(int) error { return migrate(t.Context(), db, prefix) }) {
			if err != nil {
				t.Error(err)
			}
		}
		l, _ := memory(t)
		if err := transact(t.Context(), l, db, account, deposit(1), prefix); err != nil {
			t.Error(err)
		}
		mine := db.number(t, "SELECT count(*) FROM my_fence WHERE resource <> ''")
		others := db.number(t, "SELECT count(*) FROM latchkit_fence WHERE resource <> ''")
		if mine != 1 || others != 0 {
			t.Errorf("%d claims in ours, %d in the usual table", mine, others)
		}
		schema, err := sqllock.Schema(db.dialect, sqllock.WithTablePrefix("your_"))
		if err != nil {
			t.Fatal(err)
		}
		for _, statement := range schema {
			db.exec(t, statement)
		}
		if err := transact(t.Context(), l, db, account, deposit(1), sqllock.WithTablePrefix("your_")); err != nil {
			t.Error(err)
		}
	})
}

// A database could treat some of these keys as equal. A collation, the type of a column, or a
// rule that ignores spaces at the end could make two keys equal. One of the keys is as long as
// a key may be.
func TestKeysThatLookAlikeAreDifferentResources(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		long := strings.Repeat("k", 511)
		keys := []string{"key", "KEY", "key ", "k\u00e9y", "ke\u0301y", "\u212aey", "1", "1.0", "01", "'; --", long + "a", long + "b", long}
		for _, key := range keys {
			if err := transact(t.Context(), l, db, locker.Rule{Key: key}, deposit(1)); err != nil {
				t.Errorf("%q: %v", key, err)
			}
		}
		if n := db.number(t, "SELECT count(*) FROM latchkit_fence WHERE resource <> ''"); n != int64(len(keys)) {
			t.Errorf("%d keys have %d rows", len(keys), n)
		}
	})
}
