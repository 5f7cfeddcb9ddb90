package asynqlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/sqltest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

func TestMain(m *testing.M) { redistest.Main(sqltest.Main(proc.Main(m))) }

type silent struct{}

func (silent) Debug(...any) {}
func (silent) Info(...any)  {}
func (silent) Warn(...any)  {}
func (silent) Error(...any) {}
func (silent) Fatal(...any) {}

// worker is an asynq server in a process of its own. Its handler prints a line when it runs. The
// handler takes money from an account when the parent sends a line, and it ignores its context.
var worker = proc.Register("asynq worker", func(args []string) {
	addr, dsn, queue, guarded := args[0], args[1], args[2], args[3] == "guarded"
	db, err := sql.Open("pgx", dsn)
	fatal(err)
	c := redis.NewClient(&redis.Options{Addr: addr})
	l, err := locker.New(c, locker.WithTTL(2*time.Second))
	fatal(err)
	g, err := asynqlock.New(l, asynqlock.On("withdraw", asynqlock.Template("account:{payload.account}"), asynqlock.Snooze(time.Second)))
	fatal(err)
	cfg := asynq.Config{ // asynq gives a task to another worker at once when its own lease is over
		Queues: map[string]int{queue: 1}, Logger: silent{}, DelayedTaskCheckInterval: 20 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 },
	}
	mux := asynq.NewServeMux()
	if guarded {
		mux.Use(g.Middleware)
		cfg = g.Configure(cfg)
	}
	mux.HandleFunc("withdraw", func(ctx context.Context, _ *asynq.Task) error {
		fmt.Println("runs")
		proc.Listen()
		fmt.Println("wrote:", take(context.WithoutCancel(ctx), db, guarded))
		proc.Listen()
		if guarded {
			<-ctx.Done() // only the worker that was stopped comes here, and its lease has ended
		}
		fmt.Println("lost:", errors.Is(context.Cause(ctx), locker.ErrLost))
		return nil
	})
	fatal(asynq.NewServerFromRedisClient(c, cfg).Start(mux))
	select {}
})

// take takes money from the account, and says whether the database let it.
func take(ctx context.Context, db *sql.DB, guarded bool) string {
	const withdraw = "UPDATE accounts SET balance = balance - 10 WHERE id = 1"
	if !guarded {
		_, err := db.ExecContext(ctx, withdraw)
		return fmt.Sprint(err)
	}
	h, err := sqllock.New(nil, db)
	fatal(err)
	err = h.Within(ctx, func(ctx context.Context, tx *sqllock.Tx) error {
		_, err := tx.ExecContext(ctx, withdraw)
		return err
	})
	if errors.Is(err, sqllock.ErrStaleFence) || errors.Is(err, locker.ErrLost) {
		return "refused"
	}
	return fmt.Sprint(err)
}

var runs atomic.Int64 // counts runs of tests, because each run has its own queue and tables

// While a worker is stopped, asynq delivers its task to another worker. With a guard, only the
// second worker takes money from the account; without a guard, both workers take money.
func TestAStoppedWorkerIsOvertakenAndCommitsNothing(t *testing.T) {
	t.Parallel()
	server, database := redistest.Shared(t), sqltest.Shared(t, sqltest.Postgres)
	c := server.Client(t)
	client := asynq.NewClientFromRedisClient(c)
	for way, balance := range map[string]int{"guarded": 90, "unguarded": 80} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			queue := fmt.Sprint(way, runs.Add(1))
			dsn := prepare(t, database, queue)
			first := worker.Start(t, server.Addr(), dsn, queue, way)
			info, err := client.EnqueueContext(t.Context(), asynq.NewTask("withdraw", []byte(`{"account":1}`)), asynq.Queue(queue))
			must(t, err)
			first.Expect(t, "runs")
			first.Pause()
			age(t, c, queue, info.ID)
			second := worker.Start(t, server.Addr(), dsn, queue, way)
			second.Expect(t, "runs")
			second.Send("write")
			if got := second.Expect(t, "wrote:"); got != "<nil>" {
				t.Errorf("the second worker wrote: %s", got)
			}
			first.Resume()
			first.Send("write")
			wrote := first.Expect(t, "wrote:")
			first.Send("on")
			lost := first.Expect(t, "lost:")
			if guarded := way == "guarded"; guarded != (wrote != "<nil>") || guarded != (lost == "true") {
				t.Errorf("the stopped worker wrote: %s, lost the lock: %s", wrote, lost)
			}
			t.Log("the stopped worker wrote:", wrote)
			balanced(t, dsn, balance)
		})
	}
}

// age makes asynq believe that its own lease of a task ended a minute ago. A server of asynq
// that starts then takes the task, because 30 s have passed since that end.
func age(t *testing.T, c *redis.Client, queue, id string) {
	t.Helper()
	lease := redis.Z{Score: float64(time.Now().Add(-time.Minute).Unix()), Member: id}
	if n, err := c.ZAddArgs(t.Context(), "asynq:{"+queue+"}:lease", redis.ZAddArgs{XX: true, Ch: true, Members: []redis.Z{lease}}).Result(); n != 1 {
		t.Fatalf("asynq keeps no lease of the task (%v)", err)
	}
}

func balanced(t *testing.T, dsn string, want int) {
	t.Helper()
	var got int
	if err := open(t, dsn).QueryRowContext(t.Context(), "SELECT balance FROM accounts WHERE id = 1").Scan(&got); err != nil || got != want {
		t.Errorf("the balance is %d, want %d (%v)", got, want, err)
	}
}

// prepare makes a schema with sqllock's tables and with an account whose balance is 100.
func prepare(t *testing.T, server *sqltest.Server, schema string) (dsn string) {
	t.Helper()
	exec := func(db *sql.DB, statement string) {
		t.Helper()
		_, err := db.ExecContext(t.Context(), statement)
		must(t, err)
	}
	exec(open(t, server.DSN("postgres")), "CREATE SCHEMA "+schema)
	dsn = server.DSN("postgres") + "&search_path=" + schema
	db := open(t, dsn)
	h, err := sqllock.New(nil, db)
	must(t, err)
	must(t, h.Migrate(t.Context()))
	exec(db, "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL)")
	exec(db, "INSERT INTO accounts (id, balance) VALUES (1, 100)")
	return dsn
}

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db
}
