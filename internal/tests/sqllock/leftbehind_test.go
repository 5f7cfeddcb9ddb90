package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/latchkit/latchkit/sqllock"
)

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
					if err != nil && !errors.Is(err, sqllock.ErrRetries) {
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

// A function leaves Rows or a Row open, and drivers say that the connection is lost. Nothing is
// committed, and the error says what to look for. On SQLite, open Rows hinder no COMMIT.
func TestAFunctionThatLeavesRowsOpenIsToldSo(t *testing.T) {
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
		"a Row": func(ctx context.Context, tx *sqllock.Tx) error { return tx.QueryRowContext(ctx, many).Err() },
	} {
		t.Run(name, func(t *testing.T) {
			forEach(t, func(t *testing.T, db *database) {
				l, _ := memory(t)
				err := transact(t.Context(), l, db, account, func(ctx context.Context, tx *sqllock.Tx) error {
					return errors.Join(deposit(10)(ctx, tx), leave(ctx, tx))
				})
				want := int64(110)
				if db.dialect != sqlite {
					want = 100
					if !errors.Is(err, sqllock.ErrRetries) || !strings.Contains(err.Error(), "Rows or a Row that are open") {
						t.Errorf("the error is %v", err)
					}
				} else if err != nil {
					t.Error(err)
				}
				db.checkBalance(t, want)
				if err := transact(t.Context(), l, db, account, deposit(5)); err != nil {
					t.Errorf("the next transaction: %v", err)
				}
			})
		})
	}
}
