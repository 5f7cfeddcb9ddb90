package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// A holder must read everything that earlier holders have committed, at whatever time the database
// takes its snapshot.

// awaitBlocked waits until a transaction of the database waits for a lock of the database.
func (db *database) awaitBlocked(t testing.TB) {
	t.Helper()
	query := "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = current_setting('application_name')"
	if db.dialect == maria {
		query = "SELECT count(*) FROM information_schema.processlist WHERE db = database() AND state = 'Update' AND time_ms > 100"
		if !db.isMariaDB(t) {
			query = "SELECT count(*) FROM performance_schema.data_lock_waits JOIN performance_schema.data_locks ON engine_lock_id = requesting_engine_lock_id WHERE object_schema = database()"
		}
	}
	await(t, "somebody waits for a lock", func() bool { return db.number(t, query) > 0 })
}

// isMariaDB reports whether the server is MariaDB, and not MySQL.
func (db *database) isMariaDB(t testing.TB) bool {
	t.Helper()
	return db.number(t, "SELECT VERSION() LIKE '%MariaDB%'") == 1
}

// InnoDB takes its snapshot at the first plain SELECT. This SELECT must not come between the
// claims of two resources, and must not come before a Shared resource is locked.
func TestTheSnapshotOfSeveralResourcesIsTakenWhenAllAreClaimed(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelRepeatableRead, sql.LevelSerializable} {
		for _, mode := range []locker.Mode{locker.Exclusive, locker.Shared} {
			t.Run(level.String()+" "+mode.String(), func(t *testing.T) {
				forEach(t, func(t *testing.T, db *database) {
					checkThatTheSuccessorReadsTheCommit(t, db, level, mode)
				}, postgres, maria)
			})
		}
	}
}

// checkThatTheSuccessorReadsTheCommit runs an older holder of b, which is still at work when its
// lease is lost, and a successor. The successor takes a, and then b in the given mode. It copies
// account 1, the data of b, to account 2, the data of a.
func checkThatTheSuccessorReadsTheCommit(
	t *testing.T, db *database, level sql.IsolationLevel, mode locker.Mode,
) {
	t.Helper()
	l, store := memory(t)
	successor, err := locktest.NewEngine(store.NewProcess())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = successor.Close(context.Background()) }()
	copyBalance := func(ctx context.Context, tx *sqllock.Tx) error {
		balance, err := read(ctx, tx, 1)
		if err != nil {
			return err
		}
		return write(ctx, tx, 2, balance)
	}
	rules := []locker.Rule{{Key: "a"}, {Key: "b", Mode: mode}}
	isolation := sqllock.WithTxOptions(&sql.TxOptions{Isolation: level})
	done := make(chan error, 1)
	older := locker.Rule{Key: "b", TTL: account.TTL}
	err = transact(t.Context(), l, db, older, func(ctx context.Context, tx *sqllock.Tx) error {
		store.Free("b")
		go func() { done <- transactAll(t.Context(), successor, db, rules, copyBalance, isolation) }()
		db.awaitBlocked(t)
		return deposit(10)(ctx, tx)
	})
	if err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the successor: %v", err)
	}
	if n := db.number(t, "SELECT balance FROM accounts WHERE id = 2"); n != 110 {
		t.Errorf("the successor has read %d, want 110, which the older holder has committed", n)
	}
}

// An old snapshot is also dangerous for the check of a claim. A lease may have several
// transactions, so the snapshot may show the claim of an earlier transaction of this lease,
// although a newer holder has claimed since then.
func TestAClaimIsNotJudgedByAnOldSnapshot(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		engine, store := memory(t)
		l := locktest.Reentrant(t, engine)
		rules := []locker.Rule{{Key: "a", TTL: account.TTL}, {Key: "b", TTL: account.TTL}}
		err := locker.RunAll(t.Context(), l, rules, func(ctx context.Context) error {
			if err := transactAll(ctx, l, db, rules, deposit(1)); err != nil {
				return err
			}
			next := db.begin(t, sql.LevelReadCommitted)
			store.Steal("b")
			if _, err := next.ExecContext(ctx, "UPDATE latchkit_fence SET fence = fence + 1000, owner = 'next' WHERE resource = 'b'"); err != nil {
				return err
			}
			done := make(chan error, 1)
			go func() { done <- transactAll(ctx, l, db, rules, deposit(1)) }()
			db.awaitBlocked(t)
			return errors.Join(next.Commit(), <-done)
		})
		if e, ok := errors.AsType[*sqllock.Error](err); !ok || e.Resource != "b" {
			t.Errorf("err = %v, want one about a newer claim of b", err)
		}
		db.checkBalance(t, 101)
	}, postgres, maria)
}

func TestReadUncommittedIsRefusedOnAllDatabases(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		for _, readOnly := range []bool{false, true} {
			dirty := sqllock.WithTxOptions(&sql.TxOptions{Isolation: sql.LevelReadUncommitted, ReadOnly: readOnly})
			if _, err := sqllock.New(l, db, dirty); !errors.Is(err, locker.ErrInvalidRule) {
				t.Errorf("read-only %t: %v, want ErrInvalidRule", readOnly, err)
			}
		}
	})
}

// A read-only transaction reads from a single snapshot, even if it asks for a weaker isolation
// level, or for no level.
func TestWhoOnlyReadsSeesOneMomentAtEveryIsolation(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			kinds := []sqllock.Dialect{postgres, maria}
			if level == sql.LevelSerializable {
				kinds = kinds[:1] // MariaDB's readers lock the rows that they read, so no other transaction could write here
			}
			forEach(t, func(t *testing.T, db *database) {
				l, _ := memory(t)
				var one, two int64
				err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) (err error) {
					if one, err = read(ctx, tx, 1); err != nil {
						return err
					}
					db.exec(t, "UPDATE accounts SET balance = 0") // an older holder that was paused writes now
					two, err = read(ctx, tx, 2)
					return err
				}, sqllock.WithTxOptions(&sql.TxOptions{ReadOnly: true, Isolation: level}))
				if level == sql.LevelReadCommitted {
					if !errors.Is(err, locker.ErrInvalidRule) {
						t.Errorf("err = %v", err)
					}
				} else if err != nil {
					t.Error(err)
				}
				if one != two {
					t.Errorf("read %d and %d", one, two)
				}
			}, kinds...)
		})
	}
}
