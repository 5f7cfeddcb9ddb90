package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// In these tests, a transaction sends no statements for longer than the TTL of its lease.

// brief is a Rule with a short TTL. Without renewals, its lease ends soon.
var brief = locker.Rule{Key: "brief", TTL: time.Second}

// idleFor waits for the time d, in which the transaction of the caller is idle. It ends early
// with the context.
func idleFor(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func TestAHealthyHolderMayBeIdleForLongerThanItsLease(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		calls := 0
		rule := locker.Rule{Key: "brief", TTL: 3 * time.Second}
		err := transact(t.Context(), l, db, rule, func(ctx context.Context, tx *sqllock.Tx) error {
			calls++
			balance, err := read(ctx, tx, 1)
			if err != nil {
				return err
			}
			if err := write(ctx, tx, 1, balance); err != nil { // shows that the Row was read
				return err
			}
			if err := idleFor(ctx, 3500*time.Millisecond); err != nil {
				return err
			}
			return write(ctx, tx, 1, balance+10)
		})
		if err != nil || calls != 1 {
			t.Errorf("%v after %d calls", err, calls)
		}
		db.checkBalance(t, 110)
	}, postgres, maria)
}

// When a server has ended an idle transaction, Do must not call the function again, because
// work outside of the database, such as a payment, would be done twice.
func TestATransactionThatWasEndedForIdlenessIsNotDoneAgain(t *testing.T) {
	t.Parallel()
	for name, work := range map[string]func(ctx context.Context, tx *sqllock.Tx) error{
		"and the function goes on": func(ctx context.Context, tx *sqllock.Tx) error { return deposit(10)(ctx, tx) },
		"and the function returns": func(context.Context, *sqllock.Tx) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				l, _ := memory(t)
				calls := 0
				err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
					calls++
					if err := idleFor(ctx, 2500*time.Millisecond); err != nil {
						return err
					}
					return work(ctx, tx)
				}, sqllock.WithIdleLimit(time.Second))
				if !errors.Is(err, sqllock.ErrIdle) || !strings.Contains(err.Error(), "WithIdleLimit") || calls != 1 {
					t.Errorf("%v after %d calls", err, calls)
				}
				db.checkBalance(t, 100)
			}, postgres, maria)
		})
	}
}

// When a connection breaks for another reason than an idle transaction, Do repeats the
// transaction.
func TestAConnectionThatIsCutInTheFunctionIsDoneAgain(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		calls := 0
		err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
			if calls++; calls == 1 {
				id, kill := "SELECT pg_backend_pid()", "SELECT pg_terminate_backend($1)"
				if db.dialect == maria {
					id, kill = "SELECT connection_id()", "KILL ?"
				}
				var n int64
				if err := tx.QueryRowContext(ctx, id).Scan(&n); err != nil {
					return err
				}
				db.exec(t, strings.NewReplacer("$1", itoa(n), "?", itoa(n)).Replace(kill))
			}
			return deposit(10)(ctx, tx)
		})
		if err != nil || calls != 2 {
			t.Errorf("%v after %d calls", err, calls)
		}
		db.checkBalance(t, 110)
	}, postgres, maria)
}

// A ping notices that the connection is dead, while the function is idle. On a *sql.Conn, which
// sqllock uses on MySQL, database/sql would then wait for the end of the transaction, and the
// function's next statement would wait for the ping.
func TestAFailedPingKeepsNobody(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		var target sqllock.Beginner = db
		id, kill := "SELECT connection_id()", "KILL %d"
		if db.dialect == postgres {
			id, kill = "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%d)"
			conn, err := db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			target = conn
		}
		calls := 0
		done := make(chan error, 1)
		go func() {
			rule := locker.Rule{Key: "brief", TTL: 4 * time.Second}
			done <- transact(t.Context(), l, target, rule, func(ctx context.Context, tx *sqllock.Tx) error {
				if calls++; calls == 1 {
					n, err := numberOf(tx.QueryContext(ctx, id)) // unlike a Row, Rows show that they are closed
					if err != nil {
						return err
					}
					db.exec(t, fmt.Sprintf(kill, n))
					if err := idleFor(ctx, 3500*time.Millisecond); err != nil { // in this time, two pings fail
						return err
					}
				}
				return deposit(10)(ctx, tx)
			})
		}()
		select {
		case err := <-done:
			if again := target == sqllock.Beginner(db); again && (err != nil || calls != 2) || !again && err == nil {
				t.Errorf("%v after %d calls", err, calls)
			}
		case <-time.After(patience / 2):
			t.Fatal("Do does not return")
		}
	}, postgres, maria)
}

// numberOf returns the number in the only row of rows, and closes rows.
func numberOf(rows *sql.Rows, err error) (n int64, _ error) {
	if err != nil {
		return 0, err
	}
	for rows.Next() {
		err = rows.Scan(&n)
	}
	return n, errors.Join(err, rows.Err(), rows.Close())
}

// While the function reads rows slowly, their connection is in use, so sqllock cannot send a
// ping on it.
func TestRowsThatAreReadSlowlyAreReadToTheEnd(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		db.exec(t, "INSERT INTO accounts (id, balance) VALUES (3, 100), (4, 100), (5, 100)")
		l, _ := memory(t)
		seen := 0
		err := transact(t.Context(), l, db, brief, func(ctx context.Context, tx *sqllock.Tx) error {
			rows, err := tx.QueryContext(ctx, "SELECT id FROM accounts ORDER BY id")
			if err != nil {
				return err
			}
			defer func() { _ = rows.Close() }()
			for rows.Next() {
				seen++
				if err := idleFor(ctx, 150*time.Millisecond); err != nil {
					return err
				}
			}
			if err := errors.Join(rows.Err(), rows.Close()); err != nil {
				return err
			}
			row := tx.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE id = 1") // the connection is in use until Scan
			if err := idleFor(ctx, 800*time.Millisecond); err != nil {
				return err
			}
			var balance int64
			if err := row.Scan(&balance); err != nil {
				return err
			}
			return write(ctx, tx, 1, balance+10)
		})
		if err != nil || seen != 5 {
			t.Errorf("%v after %d rows", err, seen)
		}
		db.checkBalance(t, 110)
	}, postgres, maria)
}

// On MySQL, the idle limit is a setting of the session. It must not affect the next user of the
// connection.
func TestTheIdleLimitStaysInsideTheTransaction(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		db.SetMaxOpenConns(1)
		show := map[sqllock.Dialect]string{
			postgres: "SELECT (extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint",
			maria:    "SELECT @@SESSION.wait_timeout",
		}[db.dialect]
		before := db.number(t, show)
		l, _ := memory(t)
		for name, work := range map[string]func() error{
			"committed":   func() error { return nil },
			"rolled back": func() error { return errOnPurpose },
		} {
			for limit, want := range map[time.Duration]int64{0: 9, 3 * time.Second: 3, 1500 * time.Millisecond: 2} {
				opts := []sqllock.Option{}
				if limit > 0 {
					opts = append(opts, sqllock.WithIdleLimit(limit))
				}
				_ = transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
					var inside int64
					if err := tx.QueryRowContext(ctx, show).Scan(&inside); err != nil {
						t.Error(err)
					}
					if db.dialect == postgres {
						inside = (inside + 999) / 1000
					}
					if inside != want && (limit != 0 || inside > 10 || inside < want-1) {
						t.Errorf("%s: inside it is %d s, want %d", name, inside, want)
					}
					return work()
				}, opts...)
				if after := db.number(t, show); after != before {
					t.Errorf("%s: afterwards it is %d, was %d", name, after, before)
				}
			}
		}
	}, postgres, maria)
}

// WithIdleLimit also holds where nothing is claimed.
func TestTheIdleLimitHoldsForEveryTransaction(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, postgres)
	const show = "SELECT (extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint"
	for limit, want := range map[time.Duration]int64{0: 0, 3 * time.Second: 3000} {
		var opts []sqllock.Option
		if limit > 0 {
			opts = append(opts, sqllock.WithIdleLimit(limit))
		}
		look := func(what string, q querier) error {
			var inside int64
			err := q.QueryRowContext(t.Context(), show).Scan(&inside)
			if inside != want {
				t.Errorf("%s with a limit of %v: %d ms, want %d", what, limit, inside, want)
			}
			return err
		}
		answers, h := newAnswers(t, db, opts...)
		err := errors.Join(
			answers.Transact(t.Context(), func(ctx context.Context) error {
				tx, _ := sqllock.TxFromContext(ctx)
				return look("without a lease", tx)
			}),
			h.Do(t.Context(), locker.Rule{Key: "read", Mode: locker.Shared}, func(_ context.Context, tx *sqllock.Tx) error {
				return look("read-only", tx)
			}))
		if err != nil {
			t.Error(err)
		}
	}
}

// PostgreSQL shows its own idle limit in a unit of its choice, such as 20min or 1h. sqllock
// must understand every unit.
func TestAnyIdleLimitOfTheServerIsUnderstood(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, postgres)
	l, _ := memory(t)
	for own, want := range map[string]int64{"0": 1800000, "1000500ms": 1000500, "999999": 999999, "1000s": 1000000, "20min": 1200000, "1h": 1800000, "90min": 1800000, "20d": 1800000} {
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.ExecContext(t.Context(), "SET idle_in_transaction_session_timeout = '"+own+"'"); err != nil {
			t.Fatal(err)
		}
		err = transact(t.Context(), l, conn, account, func(ctx context.Context, tx *sqllock.Tx) error {
			var ms int64
			err := tx.QueryRowContext(ctx, "SELECT (extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint").Scan(&ms)
			if ms != want {
				t.Errorf("the server's is %s, and in the transaction it is %d ms, want %d", own, ms, want)
			}
			return err
		}, sqllock.WithIdleLimit(30*time.Minute))
		if err != nil {
			t.Errorf("%s: %v", own, err)
		}
		_ = conn.Close()
	}
}
