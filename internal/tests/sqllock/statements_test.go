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
	return db.number(t, "SELECT VARIABLE_VALUE FROM information_schema.SESSION_STATUS WHERE VARIABLE_NAME = 'QUESTIONS'")
}

func TestATransactionOnMariaDBTakesFourStatementsForAnyNumberOfKeys(t *testing.T) {
	db := newDatabase(t, maria)
	db.SetMaxOpenConns(1)
	l, _ := memory(t)
	nothing := func(context.Context, *sqllock.Tx) error { return nil }
	for _, keys := range [][]locker.Rule{{{Key: "a"}}, {{Key: "a"}, {Key: "b"}, {Key: "c"}}} {
		before := db.questions(t)
		if err := sqllock.DoAll(t.Context(), l, db, keys, nothing); err != nil {
			t.Fatal(err)
		}
		if n := db.questions(t) - before - 1; n != 4 { // the 1 is the statement that the second call of questions sends
			t.Errorf("%d keys take %d statements, want 4: BEGIN, the claim, the proof with COMMIT, and the driver's COMMIT", len(keys), n)
		}
	}
}
