package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

func TestWhateverBeginsTransactionsIsKnownByItsDriver(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		for name, beginner := range map[string]sqllock.Beginner{
			"sql.DB": db.DB, "sql.Conn": conn, "sqlx.DB": sqlx.NewDb(db.DB, db.driver), "a struct around it": db,
		} {
			before := db.balance(t)
			if err := sqllock.Do(t.Context(), l, beginner, account, deposit(1)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			db.holds(t, before+1)
		}
		unknown := beginner{db, func() {}}
		if err := sqllock.Do(t.Context(), l, unknown, account, deposit(1)); !errors.Is(err, locker.ErrUnsupported) || !strings.Contains(err.Error(), "WithDialect") {
			t.Errorf("an unknown one: %v", err)
		}
	})
}

func TestWithinFencesUnderTheLeaseOfTheContext(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		if err := sqllock.Within(t.Context(), db, deposit(1)); !errors.Is(err, locker.ErrUnguarded) {
			t.Errorf("without a lease: %v", err)
		}
		err := locker.Run(t.Context(), l, account, func(ctx context.Context) error {
			lease, _ := locker.FromContext(ctx)
			return sqllock.Within(ctx, db, func(ctx context.Context, tx *sqllock.Tx) error {
				if leases := tx.Leases(); tx.Fence() != lease.Fence() || len(leases) != 1 || leases[0] != lease {
					t.Errorf("fence %d of %v, want %v", tx.Fence(), leases, lease)
				}
				return deposit(1)(ctx, tx)
			})
		})
		if err != nil {
			t.Error(err)
		}
		err = locker.Run(t.Context(), l, account, func(ctx context.Context) error {
			lease, _ := locker.FromContext(ctx)
			if err := lease.Release(ctx); err != nil {
				return err
			}
			return sqllock.Within(context.WithoutCancel(ctx), db, deposit(1))
		})
		if !errors.Is(err, locker.ErrReleased) {
			t.Errorf("after the release: %v", err)
		}
		db.holds(t, 101)
	})
}

func TestSeveralResourcesAreTakenInTheOrderOfTheirKeys(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
		var seen lockertest.Recorder
		l, _ := memory(t, locker.WithObserver(&seen))
		rules := []locker.Rule{{Key: "b"}, {Key: "c"}, {Key: "a"}, {Key: "b"}}
		err := sqllock.DoAll(t.Context(), l, db, rules, func(ctx context.Context, tx *sqllock.Tx) error {
			var keys []string
			for _, lease := range tx.Leases() {
				keys = append(keys, lease.Key())
			}
			if !slices.Equal(keys, []string{"a", "b", "c"}) || tx.Fence() != tx.Leases()[0].Fence() {
				t.Errorf("keys %v", keys)
			}
			return deposit(1)(ctx, tx)
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(seen.Records(locker.OpAcquire)); n != 3 {
			t.Errorf("%d locks were taken, want 3", n)
		}
		if n := db.number(t, "SELECT count(*) FROM latchkit_fence WHERE fence > 0"); n != 3 {
			t.Errorf("%d claims, want 3", n)
		}
		if n := db.number(t, "SELECT count(*) FROM latchkit_ledger"); n != 1 {
			t.Errorf("%d operations, want 1", n)
		}

		// Transfers in both directions at once: nobody waits for each other, nothing is lost.
		errs := together(20, func(i int) error {
			from, to := 1+i%2, 2-i%2
			rules := []locker.Rule{{Key: fmt.Sprintf("account:%d", from)}, {Key: fmt.Sprintf("account:%d", to)}}
			return sqllock.DoAll(t.Context(), l, db, rules, func(ctx context.Context, tx *sqllock.Tx) error {
				a, err := read(ctx, tx, from)
				if err != nil {
					return err
				}
				b, err := read(ctx, tx, to)
				if err != nil {
					return err
				}
				return errors.Join(write(ctx, tx, from, a-int64(i)), write(ctx, tx, to, b+int64(i)))
			}, sqllock.WithRetries(100))
		})
		for _, err := range errs {
			if err != nil {
				t.Error(err)
			}
		}
		if sum := db.number(t, "SELECT sum(balance) FROM accounts"); sum != 201 {
			t.Errorf("the sum is %d, want 201", sum)
		}
		db.holds(t, 101+10) // even i from 1 to 2, odd ones back: 90 out, 100 in

		if err := sqllock.DoAll(t.Context(), l, db, nil, deposit(1)); !errors.Is(err, locker.ErrInvalidRule) {
			t.Errorf("without rules: %v", err)
		}
	})
}

// sharing grants Shared rules, one at a time.
type sharing struct{ locker.Locker }

func (s sharing) Acquire(ctx context.Context, rule locker.Rule) (*locker.Lease, error) {
	rule.Mode = locker.Exclusive
	return s.Locker.Acquire(ctx, rule)
}

func TestReadersVerifyTheFenceAndClaimNothing(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
		l, store := memory(t)
		shared := account
		shared.Mode = locker.Shared
		reads := func(ctx context.Context, tx *sqllock.Tx) error {
			balance, err := read(ctx, tx, 1)
			if err == nil && balance != 100 {
				t.Errorf("read %d", balance)
			}
			return err
		}
		onlyReads := sqllock.WithTxOptions(&sql.TxOptions{ReadOnly: true})
		for name, do := range map[string]func() error{
			"shared":                  func() error { return sqllock.Do(t.Context(), sharing{l}, db, shared, reads) },
			"exclusive, only to read": func() error { return sqllock.Do(t.Context(), l, db, account, reads, onlyReads) },
			"exclusive, at serializable": func() error {
				return sqllock.Do(t.Context(), l, db, account, reads, sqllock.WithTxOptions(&sql.TxOptions{ReadOnly: true, Isolation: sql.LevelSerializable}))
			},
		} {
			if err := do(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := db.number(t, "SELECT count(*) FROM latchkit_fence WHERE resource <> ''"); n != 0 {
			t.Errorf("%d claims", n)
		}
		if err := sqllock.Do(t.Context(), sharing{l}, db, shared, deposit(1)); err == nil {
			t.Error("a Shared lease has written")
		}
		if err := sqllock.Do(t.Context(), l, db, account, deposit(1), onlyReads); err == nil {
			t.Error("a transaction that only reads has written")
		}
		db.holds(t, 100)
		writes := sqllock.WithTxOptions(&sql.TxOptions{})
		if err := sqllock.Do(t.Context(), sharing{l}, db, shared, reads, writes); !errors.Is(err, locker.ErrInvalidRule) {
			t.Errorf("a Shared lease that wants to write: %v", err)
		}

		mixed := []locker.Rule{account, {Key: "account:2", Mode: locker.Shared}}
		last := sqllock.WithStrategy(sqllock.VerifyLast)
		if err := sqllock.DoAll(t.Context(), sharing{l}, db, mixed, deposit(1), last); !errors.Is(err, locker.ErrInvalidRule) {
			t.Errorf("Exclusive and Shared together, with VerifyLast: %v", err)
		}
		if err := sqllock.DoAll(t.Context(), sharing{l}, db, mixed, reads, onlyReads); err != nil {
			t.Errorf("Exclusive and Shared together, only to read: %v", err)
		}

		if err := locker.Run(t.Context(), l, account, func(ctx context.Context) error { // the claim of a lease is no newer one's
			return errors.Join(sqllock.Within(ctx, db, deposit(0)), sqllock.Within(ctx, db, reads, onlyReads))
		}); err != nil {
			t.Errorf("after a claim of its own: %v", err)
		}

		db.claimed(t, account.Key, 1<<61, "a writer")
		if err := sqllock.Do(t.Context(), sharing{l}, db, shared, reads); !errors.Is(err, sqllock.ErrFenceRegressed) {
			t.Errorf("a reader whose server went back: %v", err)
		}
		late := beginner{db, func() { store.Steal(account.Key) }}
		if err := sqllock.Do(t.Context(), sharing{l}, late, shared, reads, sqllock.WithDialect(db.dialect)); !errors.Is(err, sqllock.ErrStaleFence) && !errors.Is(err, sqllock.ErrFenceRegressed) {
			t.Errorf("a reader that was overtaken: %v", err)
		}
	})
}

func TestReadersAndWritersOfAReadWriteLockSeeWholeTransfers(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
		l, err := locker.NewReadWrite([]locker.Client{redistest.Shared(t).Client(t)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close(context.Background()) }()
		key := t.Name()
		errs := together(12, func(i int) error {
			for range 5 {
				rule := locker.Rule{Key: key}
				work := func(ctx context.Context, tx *sqllock.Tx) error {
					return errors.Join(write(ctx, tx, 1, int64(100-i)), write(ctx, tx, 2, int64(100+i)))
				}
				if i%3 != 0 {
					rule.Mode = locker.Shared
					work = func(ctx context.Context, tx *sqllock.Tx) error {
						one, err := read(ctx, tx, 1)
						two, err2 := read(ctx, tx, 2)
						if one+two != 200 {
							t.Errorf("read %d and %d", one, two)
						}
						return errors.Join(err, err2)
					}
				}
				if err := sqllock.Do(t.Context(), l, db, rule, work, sqllock.WithRetries(100)); err != nil {
					return err
				}
			}
			return nil
		})
		for _, err := range errs {
			if err != nil {
				t.Error(err)
			}
		}
		if n := db.number(t, "SELECT count(*) FROM latchkit_ledger"); n != 4*5 {
			t.Errorf("%d claims were committed, want those of the writers", n)
		}
	})
}

func TestOneHoldMayHaveSeveralTransactionsButNotInsideEachOther(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
		engine, _ := memory(t)
		l := locker.NewReentrant(engine)
		err := sqllock.Do(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
			if err := sqllock.Do(ctx, l, db, account, deposit(1)); !errors.Is(err, locker.ErrUnsupported) {
				t.Errorf("inside the other: %v", err)
			}
			return deposit(10)(ctx, tx)
		})
		if err != nil {
			t.Error(err)
		}
		err = locker.Run(t.Context(), l, account, func(ctx context.Context) error {
			for range 2 {
				if err := sqllock.Do(ctx, l, db, account, deposit(1)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		db.holds(t, 112)
	})
}

func TestAReaderSeesOneMoment(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		shared := locker.Rule{Key: "report", Mode: locker.Shared}
		err := sqllock.Do(t.Context(), sharing{l}, db, shared, func(ctx context.Context, tx *sqllock.Tx) error {
			db.exec(t, "UPDATE accounts SET balance = 0 WHERE id = 2") // by somebody without a lock
			one, err := read(ctx, tx, 1)
			if err != nil {
				return err
			}
			two, err := read(ctx, tx, 2)
			if one+two != 200 {
				t.Errorf("read %d and %d", one, two)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestNestedWorkCanBeUndoneByItself(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		err := sqllock.Do(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
			if err := tx.Nested(ctx, deposit(1)); err != nil {
				return err
			}
			if err := tx.Nested(ctx, func(ctx context.Context, tx *sqllock.Tx) error {
				if err := tx.Nested(ctx, deposit(10)); err != nil {
					return err
				}
				if _, err := tx.ExecContext(ctx, "INSERT INTO accounts (id, balance) VALUES (1, 0)"); err == nil { // PostgreSQL needs the savepoint now
					t.Error("the key is not unique")
				}
				return errOnPurpose
			}); err != errOnPurpose {
				t.Errorf("err = %v", err)
			}
			func() {
				defer func() { _ = recover() }()
				_ = tx.Nested(ctx, func(ctx context.Context, tx *sqllock.Tx) error {
					_ = deposit(100)(ctx, tx)
					panic(errOnPurpose)
				})
			}()
			return deposit(1)(ctx, tx)
		})
		if err != nil {
			t.Error(err)
		}
		db.holds(t, 102)
	})
}

func TestAnUpdateCanCarryTheFenceInItsRow(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		update := func(ctx context.Context, ex sqllock.Execer, fence uint64, balance int64) error {
			return sqllock.FencedUpdate(ctx, ex, fmt.Sprintf("UPDATE accounts SET balance = %d, fence = %d WHERE id = 1 AND fence <= %d", balance, fence, fence))
		}
		err := locker.Run(t.Context(), l, account, func(ctx context.Context) error {
			lease, _ := locker.FromContext(ctx)
			if err := update(ctx, db, lease.Fence(), 110); err != nil {
				return err
			}
			err := update(ctx, db, lease.Fence()-1, 0)
			e, ok := errors.AsType[*sqllock.Error](err)
			if !ok || !errors.Is(err, sqllock.ErrStaleFence) || e.Resource != account.Key {
				t.Errorf("a smaller fence: %v", err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if err := sqllock.Do(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error { return update(ctx, tx, tx.Fence(), 120) }); err != nil {
			t.Error(err)
		}
		db.holds(t, 120)
	})
}

func TestTablesAreMadeByManyAtOnceAndUnderAnyName(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
		prefix := sqllock.WithTablePrefix("my_")
		for _, err := range together(16, func(int) error { return sqllock.Migrate(t.Context(), db, prefix) }) {
			if err != nil {
				t.Error(err)
			}
		}
		l, _ := memory(t)
		if err := sqllock.Do(t.Context(), l, db, account, deposit(1), prefix); err != nil {
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
		if err := sqllock.Do(t.Context(), l, db, account, deposit(1), sqllock.WithTablePrefix("your_")); err != nil {
			t.Error(err)
		}
	})
}

// The bound on idleness is a setting of the session on MySQL: whoever gets the connection next must
// not feel it.
func TestTheIdleLimitStaysInsideTheTransaction(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
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
				_ = sqllock.Do(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
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

func TestALostLeaseEndsTheTransactionAtOnce(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
		l, store := memory(t)
		err := sqllock.Do(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
			if err := deposit(10)(ctx, tx); err != nil {
				return err
			}
			store.Steal(account.Key)
			lease, _ := locker.FromContext(ctx)
			_ = lease.Extend(context.WithoutCancel(ctx), 2*account.TTL)
			await(t, "the row is free again", func() bool { // though this function has not returned
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				_, err := db.ExecContext(ctx, "UPDATE accounts SET balance = balance + 1 WHERE id = 1")
				return err == nil
			})
			return nil
		})
		if !errors.Is(err, locker.ErrLost) {
			t.Errorf("err = %v", err)
		}
		db.holds(t, 101)
	})
}

func TestWhatMakesNoSenseIsRefused(t *testing.T) {
	db := newDatabase(t, sqlite)
	l, _ := memory(t)
	var none *locker.Engine
	var noDB *sql.DB
	long := strings.Repeat("x", 65)
	for name, tc := range map[string]struct {
		do   func() error
		want string
	}{
		"a nil Locker":   {func() error { return sqllock.Do(t.Context(), none, db, account, deposit(1)) }, "the Locker is nil"},
		"a nil database": {func() error { return sqllock.Do(t.Context(), l, noDB, account, deposit(1)) }, "the database is nil"},
		"a nil function": {func() error { return sqllock.Do(t.Context(), l, db, account, nil) }, "the function is nil"},
		"a nil option":   {func() error { return sqllock.Do(t.Context(), l, db, account, deposit(1), nil) }, "option 1 is nil"},
		"a binary key": {func() error {
			return sqllock.Do(t.Context(), l, db, locker.Rule{Key: "a\x00b"}, deposit(1))
		}, "UTF-8 without NUL"},
		"a long key": {func() error {
			return sqllock.Do(t.Context(), l, db, locker.Rule{Key: strings.Repeat("k", 513)}, deposit(1))
		}, "513 bytes, and at most 512"},
		"a Database without Begin": {func() error {
			return sqllock.DoWith(t.Context(), l, sqllock.Database[*silent]{Dialect: sqlite}, account, func(context.Context, *silent) error { return nil })
		}, "Begin"},
		"a Database without a dialect": {func() error {
			return sqllock.DoWith(t.Context(), l, sqllock.Database[*silent]{Begin: func(context.Context, *sql.TxOptions) (*silent, sqllock.Transaction, error) { return nil, nil, nil }},
				account, func(context.Context, *silent) error { return nil })
		}, "WithDialect"},
		"a dialect": {func() error { return sqllock.Do(t.Context(), l, db, account, deposit(1), sqllock.WithDialect(9)) }, "WithDialect(9)"},
		"a prefix": {func() error {
			return sqllock.Do(t.Context(), l, db, account, deposit(1), sqllock.WithTablePrefix("a;b"))
		}, `WithTablePrefix("a;b")`},
		"a strategy": {func() error { return sqllock.Do(t.Context(), l, db, account, deposit(1), sqllock.WithStrategy(9)) }, "ClaimFirst or VerifyLast"},
		"retries":    {func() error { return sqllock.Do(t.Context(), l, db, account, deposit(1), sqllock.WithRetries(-1)) }, "WithRetries(-1)"},
		"a margin":   {func() error { return sqllock.Do(t.Context(), l, db, account, deposit(1), sqllock.WithMargin(-1)) }, "positive times"},
		"an answer":  {func() error { return sqllock.Do(t.Context(), l, db, account, deposit(1), sqllock.WithAnswerWithin(0)) }, "WithAnswerWithin(0s)"},
		"an owner":   {func() error { return sqllock.Do(t.Context(), l, db, account, deposit(1), sqllock.WithOwner(long)) }, "65 bytes"},
	} {
		if err := tc.do(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want something about %q", name, err, tc.want)
		}
	}
	db.holds(t, 100)
}

func TestManyCallersOfOneProcessLoseNothing(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
		l := onRedis(t)
		rule := locker.Rule{Key: t.Name()}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 10 {
					if err := sqllock.Do(t.Context(), l, db, rule, deposit(1)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		db.holds(t, 180)
	})
}

// Keys that a collation, a comparison with padding, or a type would take for one another, and the
// longest there is.
func TestKeysThatLookAlikeAreDifferentResources(t *testing.T) {
	each(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		long := strings.Repeat("k", 511)
		keys := []string{"key", "KEY", "key ", "k\u00e9y", "ke\u0301y", "\u212aey", "1", "1.0", "01", "'; --", long + "a", long + "b", long}
		for _, key := range keys {
			if err := sqllock.Do(t.Context(), l, db, locker.Rule{Key: key}, deposit(1)); err != nil {
				t.Errorf("%q: %v", key, err)
			}
		}
		if n := db.number(t, "SELECT count(*) FROM latchkit_fence WHERE resource <> ''"); n != int64(len(keys)) {
			t.Errorf("%d keys have %d rows", len(keys), n)
		}
	})
}

// The server shows its own bound in whatever unit suits it.
func TestAnyIdleLimitOfTheServerIsUnderstood(t *testing.T) {
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
		for _, strategy := range []sqllock.Strategy{sqllock.ClaimFirst, sqllock.VerifyLast} {
			err = sqllock.Do(t.Context(), l, conn, account, func(ctx context.Context, tx *sqllock.Tx) error {
				var ms int64
				err := tx.QueryRowContext(ctx, "SELECT (extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint").Scan(&ms)
				if ms != want {
					t.Errorf("the server's is %s, and in the transaction it is %d ms, want %d", own, ms, want)
				}
				return err
			}, sqllock.WithIdleLimit(30*time.Minute), sqllock.WithStrategy(strategy))
			if err != nil {
				t.Errorf("%s: %v", own, err)
			}
		}
		_ = conn.Close()
	}
}

// What a connection pooler between us and PostgreSQL asks for: no prepared statements.
func TestEveryWayToSendAQueryToPostgresWorks(t *testing.T) {
	db := newDatabase(t, postgres)
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			other := &database{DB: open(t, "pgx", db.dsn+"&default_query_exec_mode="+mode), dialect: postgres}
			l, _ := memory(t)
			before := db.balance(t)
			if err := sqllock.Migrate(t.Context(), other); err != nil {
				t.Error(err)
			}
			var op string
			for _, strategy := range []sqllock.Strategy{sqllock.ClaimFirst, sqllock.VerifyLast} {
				if err := sqllock.Do(t.Context(), l, other, account, func(ctx context.Context, tx *sqllock.Tx) error {
					op = tx.Op()
					return deposit(1)(ctx, tx)
				}, sqllock.WithStrategy(strategy)); err != nil {
					t.Error(err)
				}
			}
			db.holds(t, before+2)
			if committed, err := sqllock.Resolve(t.Context(), other, op); err != nil || !committed {
				t.Errorf("Resolve: %v, %v", committed, err)
			}
			if err := sqllock.Repair(t.Context(), l, other, account.Key); err != nil {
				t.Error(err)
			}
			if _, err := sqllock.Purge(t.Context(), other, time.Hour); err != nil {
				t.Error(err)
			}
			if err := sqllock.Do(t.Context(), sharing{l}, other, locker.Rule{Key: account.Key, Mode: locker.Shared},
				func(context.Context, *sqllock.Tx) error { return nil }); err != nil {
				t.Error(err)
			}
		})
	}
}
