package sqllock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/sqltest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// overWire opens the database db again, through a Wire, the proxy that causes faults. It
// returns the database with connections through this proxy, and the proxy.
func overWire(t testing.TB, db *database) (*database, *chaos.Wire) {
	t.Helper()
	w := chaos.NewWire(t, db.addr)
	far := *db
	kind := map[sqllock.Dialect]sqltest.Kind{postgres: sqltest.Postgres, maria: sqltest.MariaDB}[db.dialect]
	name := db.dsn
	if db.dialect == postgres {
		name = kind.DSN(w.Addr(), "postgres") + name[len(kind.DSN(db.addr, "postgres")):]
	} else {
		name = kind.DSN(w.Addr(), name[len(kind.DSN(db.addr, "")):])
	}
	far.dsn = name
	far.DB = open(t, db.driver, name)
	return &far, w
}

func TestACommitWithoutAnAnswerIsAppliedExactlyOnce(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]chaos.Strike{"the answer is cut off": chaos.CutAnswer, "the request is cut off": chaos.CutRequest, "the answer is swallowed": chaos.Swallow} {
		t.Run(name, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				far, w := overWire(t, db)
				l, _ := memory(t)
				rounds, within := 5, 10*time.Second
				if s == chaos.Swallow {
					rounds, within = 1, time.Second
				}
				retries := 0 // Do must not repeat a transaction if the ledger shows that it was committed
				if s == chaos.CutRequest {
					retries = 1
				}
				for range rounds {
					ran := 0
					if err := transact(t.Context(), l, far, account, func(ctx context.Context, tx *sqllock.Tx) error {
						if ran++; ran == 1 {
							w.Strike(s, false)
						}
						return deposit(10)(ctx, tx)
					}, sqllock.WithAnswerWithin(within), sqllock.WithRetries(retries)); err != nil {
						t.Error(err)
					}
					if ran != 1+retries {
						t.Errorf("the work ran %d times, want %d", ran, 1+retries)
					}
				}
				db.checkBalance(t, 100+10*int64(rounds))
				if w.Struck() != rounds {
					t.Errorf("%d of %d COMMITs were struck", w.Struck(), rounds)
				}
			}, postgres, maria)
		})
	}
}

// A constraint may fail at COMMIT. Then the server's reply proves that nothing was committed,
// so Do neither reads the ledger nor repeats the work.
func TestACommitThatIsRefusedIsNotAskedAboutNorDoneAgain(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		if db.dialect == sqlite {
			db.DB = open(t, db.driver, db.dsn+"&_pragma=foreign_keys(1)")
		}
		db.exec(t, "CREATE TABLE orders (account INTEGER REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED)")
		l, _ := memory(t)
		ran := 0
		err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
			ran++
			_, err := tx.ExecContext(ctx, "INSERT INTO orders (account) VALUES (1000)")
			return errors.Join(err, deposit(10)(ctx, tx))
		}, sqllock.WithRetries(1))
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), "foreign key") || ran != 1 {
			t.Errorf("%v after %d attempts, want one", err, ran)
		}
		if n := db.number(t, "SELECT count(*) FROM latchkit_ledger"); n != 0 {
			t.Errorf("the ledger was asked %d times", n)
		}
		db.checkBalance(t, 100)
	}, postgres, sqlite)
}

func TestACommitThatNobodyCanAskAboutIsResolvedLater(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		strike    chaos.Strike
		committed bool
	}{
		"it was committed":   {chaos.CutAnswer, true},
		"it was rolled back": {chaos.CutRequest, false},
	} {
		t.Run(name, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				far, w := overWire(t, db)
				l, _ := memory(t)
				var op string
				ran := 0
				err := transact(t.Context(), l, far, account, func(ctx context.Context, tx *sqllock.Tx) error {
					ran++
					op = tx.Op()
					w.Strike(tc.strike, true)
					return deposit(10)(ctx, tx)
				}, sqllock.WithAnswerWithin(100*time.Millisecond))
				e, ok := errors.AsType[*sqllock.Error](err)
				if !ok || !errors.Is(err, sqllock.ErrCommitUnknown) || e.Op != op || ran != 1 {
					t.Fatalf("err = %v, the work ran %d times", err, ran)
				}
				w.Revive()
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if committed, err := resolve(ctx, far, e.Op); err != nil || committed != tc.committed {
					t.Errorf("Resolve: %v, %v; want %v", committed, err, tc.committed)
				}
				if tc.committed {
					db.checkBalance(t, 110)
				} else {
					db.checkBalance(t, 100)
				}
			}, postgres, maria)
		})
	}
}

// Resolve waits for an open transaction, because the result "not committed" could become wrong a
// moment later. It also waits for a transaction with the first claim of a resource, although
// Resolve cannot see the new row of this claim yet.
func TestResolveWaitsForATransactionThatIsStillOpen(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"first claim": false, "later claim": true} {
		t.Run(name, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				l, _ := memory(t)
				if before {
					if err := transact(t.Context(), l, db, account, deposit(0)); err != nil {
						t.Fatal(err)
					}
				}
				ops, resolved := make(chan string), make(chan bool, 1)
				go func() {
					op := <-ops
					committed, err := resolve(t.Context(), db, op)
					if err != nil {
						t.Error(err)
					}
					resolved <- committed
				}()
				err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
					ops <- tx.Op()
					select {
					case committed := <-resolved:
						t.Errorf("Resolve did not wait, and said %v", committed)
						resolved <- committed
					case <-time.After(200 * time.Millisecond): // Resolve has had enough time to return
					}
					return deposit(10)(ctx, tx)
				})
				if err != nil {
					t.Fatal(err)
				}
				if !<-resolved {
					t.Error("Resolve: not committed")
				}
			})
		})
	}
}

// Resolve waits only for the transaction of its operation, not for other transactions on the
// same resource.
func TestResolveWaitsForNobodyElse(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		var op string
		if err := transact(t.Context(), l, db, account, func(_ context.Context, tx *sqllock.Tx) error { op = tx.Op(); return nil }); err != nil {
			t.Fatal(err)
		}
		if err := transact(t.Context(), l, db, account, func(context.Context, *sqllock.Tx) error {
			if committed, err := resolve(t.Context(), db, op); err != nil || !committed {
				t.Errorf("Resolve: %v, %v", committed, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}, postgres, maria)
}

func TestResolveRefusesWhatIsNoOperation(t *testing.T) {
	t.Parallel()
	db := newDatabase(t, sqlite)
	if _, err := resolve(t.Context(), db, "account:1"); !errors.Is(err, locker.ErrInvalidRule) {
		t.Error(err)
	}
}

func TestPurgeForgetsOldOperationsOnly(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, _ := memory(t)
		var op string
		if err := transact(t.Context(), l, db, account, func(_ context.Context, tx *sqllock.Tx) error { op = tx.Op(); return nil }); err != nil {
			t.Fatal(err)
		}
		db.exec(t, "INSERT INTO latchkit_ledger (op, resource, fence) VALUES ('00000000000001ABCDEFGHIJKL', 'account:1', 1)")
		if n, err := handle(t, nil, db).Purge(t.Context(), sqllock.Ages{Ledger: time.Hour}); err != nil || n != 1 {
			t.Errorf("purged %d: %v", n, err)
		}
		if committed, err := resolve(t.Context(), db, op); err != nil || !committed {
			t.Errorf("the new operation: %v, %v", committed, err)
		}
		if _, err := handle(t, nil, db).Purge(t.Context(), sqllock.Ages{Ledger: time.Minute}); !errors.Is(err, locker.ErrInvalidRule) {
			t.Errorf("a minute: %v", err)
		}
	})
}

// Sometimes the server's reply to a ROLLBACK or a COMMIT is lost. Do does not wait for such a reply
// for ever, so the lock becomes free.
func TestAServerThatDoesNotAnswerKeepsNobodyForEver(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		word string
		work error
	}{
		"a rollback": {"ROLLBACK", errOnPurpose},
		"a commit":   {"COMMIT", nil},
	} {
		t.Run(name, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				far, w := overWire(t, db)
				l, _ := memory(t)
				w.StrikeAt(tc.word, chaos.Swallow, false)
				done := make(chan error, 1)
				go func() {
					done <- transact(t.Context(), l, far, account, func(ctx context.Context, tx *sqllock.Tx) error {
						return errors.Join(deposit(10)(ctx, tx), tc.work)
					}, sqllock.WithAnswerWithin(500*time.Millisecond))
				}()
				select {
				case err := <-done:
					if !errors.Is(err, tc.work) {
						t.Errorf("err = %v, want %v", err, tc.work)
					}
				case <-time.After(patience / 2):
					t.Error("Do waits for an answer that does not come")
				}
				if w.Struck() != 1 {
					t.Errorf("%d statements were struck", w.Struck())
				}
			}, postgres, maria)
		})
	}
}

// At whatever point the connection breaks, Do returns the true result, and the next Do works.
func TestALostConnectionIsNoLieAtAnyPoint(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]chaos.Strike{"answer": chaos.CutAnswer, "request": chaos.CutRequest} {
		t.Run("the "+name, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				points := []string{"BEGIN", "LATCHKIT_FENCE", "LATCHKIT_LEDGER", "SELECT BALANCE", "UPDATE ACCOUNTS"}
				if db.dialect == maria {
					points[0] = "START TRANSACTION"
					points = append(points, "WAIT_TIMEOUT")
				}
				l, _ := memory(t)
				want := int64(100)
				for i, point := range points {
					for _, retries := range []int{0, 1} {
						far, w := overWire(t, db)
						w.StrikeAt(point, s, false)
						err := transact(t.Context(), l, far, account, deposit(10), sqllock.WithRetries(retries))
						if err == nil {
							want += 10
						} else if errors.Is(err, sqllock.ErrCommitUnknown) {
							t.Errorf("%s: %v", point, err)
						}
						if w.Struck() != 1 {
							t.Errorf("%s was struck %d times", point, w.Struck())
						}
						db.checkBalance(t, want)
						if err := transact(t.Context(), l, far, account, deposit(10)); err != nil {
							t.Errorf("after %s (%d): %v", point, i, err)
						}
						want += 10
					}
				}
			}, postgres, maria)
		})
	}
}
