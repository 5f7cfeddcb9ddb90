package pgxlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/latchkit/latchkit/contrib/pgxlock"
	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/sqltest"
	"github.com/latchkit/latchkit/internal/sqltest/adaptertest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

func TestMain(m *testing.M) { os.Exit(sqltest.Main(m).Run()) }

var schemas atomic.Int64

// bank returns a pool on a new schema, with the tables of sqllock and two accounts with a balance
// of 100.
func bank(t *testing.T, trips pgx.QueryTracer) *pgxpool.Pool {
	t.Helper()
	name := fmt.Sprintf("pgxlock_%d", schemas.Add(1))
	dsn := sqltest.Shared(t, sqltest.Postgres).DSN("postgres")
	admin, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(context.Background()) }()
	if _, err := admin.Exec(t.Context(), "CREATE SCHEMA "+name); err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(dsn + "&search_path=" + name)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.Tracer = trips
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := handle(t, nil, pool).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		"CREATE TABLE accounts (id integer PRIMARY KEY, balance integer NOT NULL)",
		"INSERT INTO accounts VALUES (1, 100), (2, 100)",
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return pool
}

// handle returns the Handle of db for the locks of l.
func handle(t *testing.T, l locker.Locker, db pgxlock.DB, opts ...sqllock.Option) *sqllock.Handle[pgx.Tx] {
	t.Helper()
	h, err := pgxlock.New(l, db, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func balance(t *testing.T, pool *pgxpool.Pool, id int) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "SELECT balance FROM accounts WHERE id = $1", id).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func deposit(amount int) func(ctx context.Context, tx pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		n := 0
		if err := tx.QueryRow(ctx, "SELECT balance FROM accounts WHERE id = 1").Scan(&n); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE accounts SET balance = $1 WHERE id = 1", n+amount)
		return err
	}
}

var account = adaptertest.Account

// The adapter passes the tests of all adapters of sqllock, on all kinds of connections.
func TestAdapter(t *testing.T) {
	for name, of := range map[string]func(t *testing.T, pool *pgxpool.Pool) pgxlock.DB{
		"pool":         func(_ *testing.T, pool *pgxpool.Pool) pgxlock.DB { return pool },
		"pgxpool.Conn": func(t *testing.T, pool *pgxpool.Pool) pgxlock.DB { return connection(t, pool) },
		"pgx.Conn":     func(t *testing.T, pool *pgxpool.Pool) pgxlock.DB { return connection(t, pool).Conn() },
	} {
		t.Run(name, func(t *testing.T) {
			adaptertest.Run(t, func(t *testing.T) adaptertest.Adapter[pgx.Tx] {
				pool := bank(t, nil)
				return adapter(pool, of(t, pool))
			})
		})
	}
}

func connection(t *testing.T, pool *pgxpool.Pool) *pgxpool.Conn {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	return conn
}

func adapter(pool *pgxpool.Pool, db pgxlock.DB) adaptertest.Adapter[pgx.Tx] {
	return adaptertest.Adapter[pgx.Tx]{
		New: func(l locker.Locker, opts ...sqllock.Option) (*sqllock.Handle[pgx.Tx], error) {
			return pgxlock.New(l, db, opts...)
		},
		InTx: func(ctx context.Context, h *sqllock.Handle[pgx.Tx], amount int) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				claim, err := pgxlock.InTx(ctx, h, tx)
				if err != nil {
					return err
				}
				_, err = tx.Exec(ctx, "UPDATE accounts SET balance = balance + $1 WHERE id = 1", amount)
				return errors.Join(err, claim.Verify(ctx), claim.Verify(ctx))
			})
		},
		Deposit: func(ctx context.Context, tx pgx.Tx, amount int) error { return deposit(amount)(ctx, tx) },
		Exec: func(ctx context.Context, tx pgx.Tx, text string) error {
			_, err := tx.Exec(ctx, text)
			return err
		},
		Balance: func(t *testing.T) int { return balance(t, pool, 1) },
	}
}

// All parts of pgx.Tx work: CommandTag, batches, COPY, savepoints.
func TestNothingOfPgxIsMissing(t *testing.T) {
	pool := bank(t, nil)
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	err := handle(t, l, pool).Do(t.Context(), account, func(ctx context.Context, tx pgx.Tx) error {
		claim, ok := sqllock.ClaimFromContext(ctx)
		if !ok || claim.Fence() == 0 || len(claim.Leases()) != 1 || claim.Op() == "" {
			t.Errorf("the claim is %v", claim)
		}
		tag, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + 1")
		if err != nil || tag.RowsAffected() != 2 {
			t.Errorf("%v, %v", tag, err)
		}
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"accounts"}, []string{"id", "balance"}, pgx.CopyFromRows([][]any{{3, 100}, {4, 100}})); err != nil {
			return err
		}
		var batch pgx.Batch
		batch.Queue("UPDATE accounts SET balance = balance + 1 WHERE id = 3")
		if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
			return err
		}
		errOnPurpose := errors.New("on purpose")
		if err := pgx.BeginFunc(ctx, tx, func(inner pgx.Tx) error { // a savepoint
			_, err := inner.Exec(ctx, "DELETE FROM accounts")
			return errors.Join(err, errOnPurpose)
		}); !errors.Is(err, errOnPurpose) {
			t.Error(err)
		}
		rows, err := tx.Query(ctx, "SELECT id FROM accounts ORDER BY id")
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if err != nil || len(ids) != 4 {
			t.Errorf("%v, %v", ids, err)
		}
		if tx.Commit(ctx) == nil || tx.Rollback(ctx) == nil {
			t.Error("the function has ended the transaction")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if got := balance(t, pool, 3); got != 101 {
		t.Errorf("account 3 has %d", got)
	}
}

// trips counts the statements and batches that are sent. It does not count the pings with which
// the pool checks a connection that was idle for a second.
type trips struct{ n atomic.Int64 }

func (c *trips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if q.SQL != "-- ping" {
		c.n.Add(1)
	}
	return ctx
}
func (c *trips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (c *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (c *trips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (c *trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func TestATransactionCostsNoMoreRoundTripsThanWithoutALock(t *testing.T) {
	count := new(trips)
	pool := bank(t, count)
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	before := count.n.Load()
	if err := handle(t, l, pool).Do(t.Context(), account, deposit(1)); err != nil {
		t.Fatal(err)
	}
	if n := count.n.Load() - before; n != 4 {
		t.Errorf("%d round trips, want 4: begin, read, write, commit", n)
	}
}

func TestAConnectionWhoseOwnerHasBegunIsRefused(t *testing.T) {
	pool := bank(t, nil)
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := handle(t, l, conn).Do(t.Context(), account, deposit(10)); !errors.Is(err, locker.ErrUnsupported) {
		t.Errorf("err = %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}

// COMMIT cannot be sent while the function has rows open. A retry would not help, because the
// function would leave its rows open again.
func TestAFunctionThatLeavesItsRowsOpenIsToldSo(t *testing.T) {
	pool := bank(t, nil)
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	calls := 0
	err := handle(t, l, pool).Do(t.Context(), account, func(ctx context.Context, tx pgx.Tx) error {
		calls++
		if err := deposit(10)(ctx, tx); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "SELECT id FROM accounts ORDER BY id")
		if err != nil {
			return err
		}
		rows.Next()
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "close them") || calls != 1 {
		t.Errorf("%v after %d calls", err, calls)
	}
	if got := balance(t, pool, 1); got != 100 {
		t.Errorf("the account has %d", got)
	}
	if err := handle(t, l, pool).Do(t.Context(), account, deposit(1)); err != nil {
		t.Errorf("the next transaction: %v", err)
	}
}

// A pooler such as pgbouncer may not support pgx' default mode for queries, so pgxlock must work in
// every mode.
func TestEveryWayToSendAQueryWorks(t *testing.T) {
	config := bank(t, nil).Config()
	config.MaxConns = 1
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			config.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			l := lockertest.NewLocker(t, lockertest.NewMemory())
			before := balance(t, pool, 1)
			several := []locker.Rule{{Key: `a'; --`}, {Key: `b\`}}
			if err := handle(t, l, pool).Operation("it's "+mode.String()).DoAll(t.Context(), several, deposit(1)); err != nil {
				t.Error(err)
			}
			if err := handle(t, l, pool).Do(t.Context(), locker.Rule{Key: "a", Mode: locker.Shared}, deposit(0)); err != nil {
				t.Error(err)
			}
			_, repaired := handle(t, l, pool).Repair(t.Context())
			_, purged := handle(t, l, pool).Purge(t.Context(), sqllock.Ages{Ledger: time.Hour, Operations: time.Hour, Fences: 24 * time.Hour})
			_, resolved := handle(t, l, pool).Resolve(t.Context(), noOp)
			if err := errors.Join(repaired, purged, resolved); err != nil {
				t.Error(err)
			}
			read := sqllock.WithTxOptions(&sql.TxOptions{ReadOnly: true})
			if err := handle(t, l, pool, read).Do(t.Context(), account, func(context.Context, pgx.Tx) error { return nil }); err != nil {
				t.Error(err)
			}
			if err := handle(t, l, pool).Do(t.Context(), account, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "ROLLBACK")
				return err
			}); !errors.Is(err, sqllock.ErrEnded) {
				t.Errorf("a transaction that was ended: %v", err)
			}
			if got := balance(t, pool, 1) - before; got != 1 || pool.Stat().AcquiredConns() != 0 {
				t.Errorf("the account has %d more, and %d connections are in use", got, pool.Stat().AcquiredConns())
			}
		})
	}
}

// The connection goes back to its pool, and the next transaction uses it. A goroutine that the
// function has left behind must not write there.
func TestNoStatementRunsAfterItsTransaction(t *testing.T) {
	pool := bank(t, nil)
	var kept pgx.Tx
	err := handle(t, lockertest.NewLocker(t, lockertest.NewMemory()), pool).Do(t.Context(), locker.Rule{Key: "account:1"},
		func(_ context.Context, tx pgx.Tx) error {
			kept = tx
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	const write = "UPDATE accounts SET balance = 0"
	for name, use := range map[string]func(ctx context.Context) error{
		"Exec":     func(ctx context.Context) error { _, err := kept.Exec(ctx, write); return err },
		"Prepare":  func(ctx context.Context) error { _, err := kept.Prepare(ctx, "late", write); return err },
		"QueryRow": func(ctx context.Context) error { return kept.QueryRow(ctx, write+" RETURNING id").Scan(new(int)) },
		"Query": func(ctx context.Context) error {
			rows, _ := kept.Query(ctx, write+" RETURNING id") // CollectRows returns the error
			_, err := pgx.CollectRows(rows, pgx.RowTo[int])
			return err
		},
		"SendBatch": func(ctx context.Context) error {
			var b pgx.Batch
			b.Queue(write)
			return kept.SendBatch(ctx, &b).Close()
		},
		"Begin": func(ctx context.Context) error { _, err := kept.Begin(ctx); return err },
		"CopyFrom": func(ctx context.Context) error {
			_, err := kept.CopyFrom(ctx, pgx.Identifier{"accounts"}, []string{"id", "balance"}, pgx.CopyFromRows([][]any{{9, 9}}))
			return err
		},
	} {
		if err := use(t.Context()); !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("%s after the transaction: %v", name, err)
		}
	}
	if got := balance(t, pool, 1); got != 100 {
		t.Errorf("the account has %d", got)
	}
}

// narrow returns a pool of one connection to the database of pool, and what is between them.
func narrow(t *testing.T, pool *pgxpool.Pool) (*pgxpool.Pool, *chaos.Wire) {
	t.Helper()
	wire := chaos.NewWire(t, sqltest.Shared(t, sqltest.Postgres).Addr())
	config := pool.Config()
	config.MaxConns = 1
	config.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, wire.Addr())
	}
	one, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(one.Close)
	return one, wire
}

// No method needs a second connection beside its first one: in a pool that others use up, it would
// wait for itself.
func TestOneConnectionIsEnough(t *testing.T) {
	pool, _ := narrow(t, bank(t, nil))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	h := handle(t, lockertest.NewLocker(t, lockertest.NewMemory()), pool, sqllock.WithTablePrefix("one_"))
	if err := h.Migrate(ctx); err != nil {
		t.Errorf("Migrate: %v", err)
	}
	if err := h.Do(ctx, account, deposit(1)); err != nil {
		t.Errorf("Do: %v", err)
	}
	if _, err := h.Resolve(ctx, noOp); err != nil {
		t.Errorf("Resolve: %v", err)
	}
	if _, err := h.Purge(ctx, sqllock.Ages{}); err != nil {
		t.Errorf("Purge: %v", err)
	}
}

// noOp is the name of an operation that never was.
const noOp = "00000000000000AAAAAAAAAAAA:k"

// A connection whose COMMIT got no answer goes back to its pool, also from a transaction of this
// package's own.
func TestAFailedCommitGivesItsConnectionBack(t *testing.T) {
	for name, strike := range map[string]chaos.Strike{"cut": chaos.CutAnswer, "swallowed": chaos.Swallow} {
		pool, wire := narrow(t, bank(t, nil))
		h := handle(t, lockertest.NewLocker(t, lockertest.NewMemory()), pool)
		wire.Strike(strike, true)
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		if _, err := h.Resolve(ctx, noOp); err == nil {
			t.Errorf("%s: no error", name)
		}
		cancel()
		wire.Revive()
		ctx, cancel = context.WithTimeout(t.Context(), 30*time.Second)
		if _, err := h.Resolve(ctx, noOp); err != nil {
			t.Errorf("%s: afterwards: %v", name, err)
		}
		cancel()
		if n := pool.Stat().AcquiredConns(); n != 0 {
			t.Errorf("%s: %d connections are not back", name, n)
		}
	}
}

// A connection has one transaction at a time. A second one, of another goroutine, must be refused
// also before the first has sent BEGIN.
func TestGoroutinesDoNotShareATransactionOfOneConn(t *testing.T) {
	for name, of := range map[string]func(conn *pgxpool.Conn) pgxlock.DB{
		"pgxpool.Conn": func(conn *pgxpool.Conn) pgxlock.DB { return conn },
		"pgx.Conn":     func(conn *pgxpool.Conn) pgxlock.DB { return conn.Conn() },
	} {
		t.Run(name, func(t *testing.T) {
			const rounds = 30
			pool := bank(t, nil)
			h := handle(t, lockertest.NewLocker(t, lockertest.NewMemory()), of(connection(t, pool)))
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var both sync.WaitGroup
			for i := range 2 {
				both.Go(func() {
					for n := 0; n < rounds && ctx.Err() == nil; {
						err := h.Do(ctx, locker.Rule{Key: fmt.Sprint(i)}, func(ctx context.Context, tx pgx.Tx) error {
							for range 2 {
								if _, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + 1 WHERE id = $1", 1+i); err != nil {
									return err
								}
							}
							return nil
						})
						switch {
						case err == nil:
							n++
						case !errors.Is(err, locker.ErrUnsupported):
							t.Errorf("goroutine %d: %v", i, err)
							return
						}
					}
				})
			}
			both.Wait()
			if one, two := balance(t, pool, 1), balance(t, pool, 2); one != 100+2*rounds || two != one {
				t.Errorf("the accounts have %d and %d, want %d", one, two, 100+2*rounds)
			}
		})
	}
}

// When Do returns, the caller may use its own connection. So no goroutine of Do may still use the
// connection, also if COMMIT or ROLLBACK got no answer. The race detector finds such a goroutine.
func TestDoLeavesTheCallersConnectionBeforeItReturns(t *testing.T) {
	const rounds = 20
	pool, wire := narrow(t, bank(t, nil))
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	errOnPurpose := errors.New("on purpose")
	cases := []struct {
		word         string // the statement that gets no answer
		result, want error
		readOnly     bool
	}{
		{"COMMIT", nil, sqllock.ErrCommitUnknown, false},
		{"COMMIT", nil, nil, true}, // Do does not read the ledger, and its error has no name
		{"ROLLBACK", errOnPurpose, errOnPurpose, false},
	}
	for _, tc := range cases {
		for range rounds {
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			h := handle(t, l, conn.Conn(), sqllock.WithAnswerWithin(200*time.Millisecond),
				sqllock.WithTxOptions(&sql.TxOptions{ReadOnly: tc.readOnly}))
			err = h.Do(t.Context(), account, func(context.Context, pgx.Tx) error {
				wire.StrikeAt(tc.word, chaos.Swallow, true)
				return tc.result
			})
			if err == nil || tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("%s, read-only %v: %v, want %v", tc.word, tc.readOnly, err, tc.want)
			}
			conn.Release()
			wire.Revive()
		}
	}
	if n := wire.Struck(); n != len(cases)*rounds {
		t.Errorf("the fault has struck %d times, want %d", n, len(cases)*rounds)
	}
}
