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

// Each statement is a round trip to the server.
func TestATransactionOnMariaDBTakesFewStatements(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, maria)
	db.SetMaxOpenConns(1)
	l, _ := memory(t)
	nothing := func(context.Context, *sqllock.Tx) error { return nil }
	h := handle(t, l, db)
	for _, keys := range [][]locker.Rule{{{Key: "a"}}, {{Key: "a"}, {Key: "b"}, {Key: "c"}}} {
		want := int64(7 + 2*len(keys)) // BEGIN, session, note, mark, proof, COMMIT, restore; for each key a claim and its check
		before := db.questions(t)
		if err := h.DoAll(t.Context(), keys, nothing); err != nil {
			t.Fatal(err)
		}
		if n := db.questions(t) - before - 1; n != want { // the 1 is the statement that the second call of questions sends
			t.Errorf("%d keys take %d statements, want %d", len(keys), n, want)
		}
	}
}
