package sqllock_test

import (
	"context"
	"testing"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// questions returns the number of statements that the session has sent.
func (db *database) questions(t *testing.T) int64 {
	t.Helper()
	var name string
	var n int64
	if err := db.QueryRowContext(t.Context(), "SHOW SESSION STATUS LIKE 'Questions'").Scan(&name, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// MariaDB gets all steps of a claim in one statement, and the proof and COMMIT in another. MySQL
// has no such statements: it gets each step alone, after it has refused the first of them.
func TestATransactionOnMariaDBTakesFourStatementsForAnyNumberOfKeys(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, maria)
	db.SetMaxOpenConns(1)
	l, _ := memory(t)
	nothing := func(context.Context, *sqllock.Tx) error { return nil }
	mariaDB, h := db.isMariaDB(t), handle(t, l, db)
	for i, keys := range [][]locker.Rule{{{Key: "a"}}, {{Key: "a"}, {Key: "b"}, {Key: "c"}}} {
		want := int64(4)
		if !mariaDB {
			want = int64(9 + 2*len(keys) + 1 - i)
		}
		before := db.questions(t)
		if err := h.DoAll(t.Context(), keys, nothing); err != nil {
			t.Fatal(err)
		}
		if n := db.questions(t) - before - 1; n != want { // the 1 is the statement that the second call of questions sends
			t.Errorf("%d keys take %d statements, want %d; on MariaDB BEGIN, the claim, the proof with COMMIT, and the driver's COMMIT", len(keys), n, want)
		}
	}
}
