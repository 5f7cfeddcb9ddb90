package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// A function leaves Rows or a Row open. Drivers then say that the connection is lost, and repeating
// the function would repeat its effects elsewhere. So the error says what to do, after one call. On
// SQLite, open Rows hinder no COMMIT.
func TestAFunctionThatLeavesRowsOpenIsNotRepeated(t *testing.T) {
	t.Parallel()
	const many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT i FROM n"
	for name, leave := range map[string]func(ctx context.Context, tx *sqllock.Tx) error{
		"Rows": func(ctx context.Context, tx *sqllock.Tx) error {
			rows, err := tx.QueryContext(ctx, many) //nolint:sqlclosecheck,rowserrcheck // the mistake
			if err == nil {
				rows.Next()
			}
			return err
		},
		"a Row": func(ctx context.Context, tx *sqllock.Tx) error {
			return tx.QueryRowContext(ctx, many).Err()
		},
		"Rows of the *sql.Tx": func(ctx context.Context, tx *sqllock.Tx) error {
			rows, err := tx.SQL().QueryContext(ctx, many) //nolint:sqlclosecheck,rowserrcheck // the mistake
			if err == nil {
				rows.Next()
			}
			return err
		},
		"Rows under another statement": func(ctx context.Context, tx *sqllock.Tx) error {
			rows, err := tx.QueryContext(ctx, many) //nolint:sqlclosecheck,rowserrcheck // the mistake
			if err == nil {
				rows.Next()
				_, err = tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + 0 WHERE id = 1")
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				l, _ := memory(t)
				calls := 0
				err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
					calls++
					if err := deposit(10)(ctx, tx); err != nil {
						return err
					}
					return leave(ctx, tx)
				})
				want := int64(100)
				if db.dialect == sqlite {
					want = 110
					if err != nil {
						t.Error(err)
					}
				} else if err == nil || !strings.Contains(err.Error(), "read the Rows to their end or close them") {
					t.Errorf("the error is %v", err)
				}
				if calls != 1 {
					t.Errorf("the function was called %d times", calls)
				}
				db.checkBalance(t, want)
				if err := transact(t.Context(), l, db, account, deposit(5)); err != nil {
					t.Errorf("the next transaction: %v", err)
				}
			})
		})
	}
}

// When ctx ends, database/sql locks the *sql.Tx to roll it back, behind the statement under way.
// The lock looks as if Rows were open. In this test, the statement lasts, so that the lock lasts.
func TestTheEndOfCtxIsNotTakenForOpenRows(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		l, store := memory(t)
		running := "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active' AND application_name = '" + db.schema + "'"
		for want, end := range map[error]func(lease *locker.Lease, cancel func()){
			context.Canceled: func(_ *locker.Lease, cancel func()) { cancel() },
			locker.ErrLost: func(lease *locker.Lease, _ func()) {
				store.Steal(account.Key)
				_ = lease.Extend(t.Context(), 2*account.TTL)
			},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			slow := make(chan error, 1)
			err := transact(ctx, l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
				std := tx.SQL()
				go func() {
					_, err := std.ExecContext(context.WithoutCancel(ctx), "SELECT pg_sleep(1)")
					slow <- err
				}()
				await(t, "the statement runs", func() bool { return db.number(t, running) > 0 })
				lease, _ := locker.FromContext(ctx)
				end(lease, cancel)
				<-ctx.Done()
				return nil
			})
			cancel()
			if slowErr := <-slow; !errors.Is(err, want) || strings.Contains(fmt.Sprint(err), "Rows") || slowErr != nil {
				t.Errorf("%v, want %v; the statement: %v", err, want, slowErr)
			}
			store.Free(account.Key)
		}
	}, postgres)
}

// A goroutine that the function has left behind keeps writing. Each of its statements is in the
// transaction, or fails: none is committed by itself, without a claim.
func TestNoStatementIsCommittedAfterItsTransaction(t *testing.T) {
	// Each row has a name of its transaction. MySQL shows none, but autocommit is off in a
	// transaction of Do, and on after it.
	names := map[sqllock.Dialect]string{postgres: "txid_current()", maria: "@@autocommit"}
	for way, use := range map[string]func(*sqllock.Tx) func(context.Context, string, ...any) (sql.Result, error){
		"by the Tx": func(tx *sqllock.Tx) func(context.Context, string, ...any) (sql.Result, error) { return tx.ExecContext },
		"by the *sql.Tx": func(tx *sqllock.Tx) func(context.Context, string, ...any) (sql.Result, error) {
			return tx.SQL().ExecContext
		},
	} {
		t.Run(way, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				l, _ := memory(t)
				db.exec(t, "CREATE TABLE written (stray INTEGER NOT NULL, began_in BIGINT NOT NULL)")
				write := func(stray string) string {
					return "INSERT INTO written (stray, began_in) VALUES (" + stray + ", " + names[db.dialect] + ")"
				}
				refused := 0
				var tried atomic.Int64
				for range 100 {
					var strays sync.WaitGroup
					err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
						exec := use(tx)
						if _, err := exec(ctx, write("0")); err != nil {
							return err
						}
						strays.Go(func() {
							for range 50 {
								tried.Add(1)
								if _, err := exec(context.Background(), write("1")); err != nil {
									return
								}
							}
						})
						return nil
					})
					strays.Wait()
					if err != nil && !strings.Contains(err.Error(), "wait for goroutines") {
						t.Fatal(err)
					}
					if err != nil {
						refused++
					}
				}
				outside := 0
				must(db.QueryRowContext(t.Context(), "SELECT count(*) FROM written WHERE stray = 1 AND began_in NOT IN "+
					"(SELECT began_in FROM written WHERE stray = 0)").Scan(&outside))
				t.Logf("%d statements, %d transactions refused", tried.Load(), refused)
				if outside > 0 || tried.Load() == 0 {
					t.Errorf("%d of %d statements were committed outside of a transaction", outside, tried.Load())
				}
			}, postgres, maria)
		})
	}
}
