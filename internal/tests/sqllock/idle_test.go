package sqllock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// brief is a Rule with a short TTL. Without renewals, its lease ends soon.
var brief = locker.Rule{Key: "brief", TTL: 3 * time.Second}

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

// When a server has ended an idle transaction, Do must not call the function again, because work
// outside of the database, such as a payment, would be done twice. The lease is held all the time.
func TestATransactionThatWasEndedForIdlenessIsNotDoneAgain(t *testing.T) {
	t.Parallel()
	returns := func(context.Context, *sqllock.Tx) error { return nil }
	for name, tc := range map[string]struct {
		rule locker.Rule
		opts []sqllock.Option
		work func(ctx context.Context, tx *sqllock.Tx) error
	}{
		"longer than its TTL":       {brief, nil, deposit(10)},
		"longer, and it returns":    {brief, nil, returns},
		"longer than WithIdleLimit": {account, []sqllock.Option{sqllock.WithIdleLimit(time.Second)}, deposit(10)},
	} {
		t.Run(name, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				l, _ := memory(t)
				calls := 0
				err := transact(t.Context(), l, db, tc.rule, func(ctx context.Context, tx *sqllock.Tx) error {
					calls++
					if err := idleFor(ctx, 4500*time.Millisecond); err != nil {
						return err
					}
					return tc.work(ctx, tx)
				}, tc.opts...)
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
			for _, tc := range []struct {
				ttl, limit time.Duration
				want       int64
			}{{10 * time.Second, 0, 10}, {500 * time.Millisecond, 0, 1}, {10 * time.Second, 3 * time.Second, 3}, {10 * time.Second, 1500 * time.Millisecond, 2}} {
				opts := []sqllock.Option{}
				if tc.limit > 0 {
					opts = append(opts, sqllock.WithIdleLimit(tc.limit))
				}
				_ = transact(t.Context(), l, db, locker.Rule{Key: "limited", TTL: tc.ttl}, func(ctx context.Context, tx *sqllock.Tx) error {
					var inside int64
					if err := tx.QueryRowContext(ctx, show).Scan(&inside); err != nil {
						t.Error(err)
					}
					if db.dialect == postgres {
						inside = (inside + 999) / 1000
					}
					if inside != tc.want {
						t.Errorf("%s: inside it is %d s, want %d", name, inside, tc.want)
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

// PostgreSQL shows its own idle limit in a unit of its choice, such as 20min or 1h. sqllock
// must understand every unit.
func TestAnyIdleLimitOfTheServerIsUnderstood(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, postgres)
	db.SetMaxOpenConns(1)
	l, _ := memory(t)
	for own, want := range map[string]int64{"0": 1800000, "1000500ms": 1000500, "999999": 999999, "1000s": 1000000, "20min": 1200000, "1h": 1800000, "90min": 1800000, "20d": 1800000} {
		db.exec(t, "SET idle_in_transaction_session_timeout = '"+own+"'") // in the session of the only connection
		err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
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
	}
}
