package sqllock_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

// In these tests, holders are separate processes. They are paused for longer than their lease
// lasts.

// pausedTTL is the TTL of the leases in these tests.
const pausedTTL = time.Second

// worker has the database and the Locker that a child process uses.
type worker struct {
	db *sql.DB
	l  *locker.Engine
}

// newWorker opens the database and makes the Locker. The first elements of args are the driver,
// the DSN, and the address of Redis.
func newWorker(args []string) worker {
	db, err := sql.Open(args[0], args[1])
	must(err)
	db.SetMaxOpenConns(4)
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: args[2]}),
		// The metadata lets a parent find the holder's process.
		locker.WithMetadata(func(context.Context) string { return strconv.Itoa(os.Getpid()) }))
	must(err)
	return worker{db, l}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// printResult prints err, the result of Do, for the parent process.
func printResult(err error) {
	if err == nil {
		fmt.Println("result committed")
		return
	}
	fmt.Println("result", strings.ReplaceAll(err.Error(), "\n", "; "))
}

// The work of these holders ignores the end of its context, which is the worst case.

// commitHolder is a process that stops itself after all checks of sqllock, just before it sends
// COMMIT.
var commitHolder = proc.Register("commit holder", func(args []string) {
	w := newWorker(args)
	database := sqllock.Database[stopping]{
		Dialect: dialectOf(args[0]),
		Begin: func(ctx context.Context, opts *sql.TxOptions) (stopping, sqllock.Transaction, error) {
			tx, err := w.db.BeginTx(ctx, opts)
			s := stopping{&silent{Tx: tx, parent: &silent{transactions: 2}}}
			return s, s, err
		},
	}
	printResult(transactWith(context.Background(), w.l, database, locker.Rule{Key: args[3], TTL: pausedTTL}, func(ctx context.Context, tx stopping) error {
		balance, err := read(ctx, tx.Tx, 1)
		if err != nil {
			return err
		}
		return write(ctx, tx.Tx, 1, balance+10)
	}))
	proc.Listen()
})

// stopping is a transaction that stops its whole process before COMMIT. Only the first such
// transaction of a process does so.
type stopping struct{ *silent }

var stop = sync.OnceFunc(func() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	// The signal may reach another thread first, so this thread may continue for a moment.
	<-time.After(200 * time.Millisecond)
})

func (s stopping) Exec(ctx context.Context, query string, args ...any) (rows int64, err error) {
	if query == "COMMIT" {
		stop()
	}
	return s.silent.Exec(ctx, query, args...)
}

func (s stopping) Commit(ctx context.Context) error {
	stop()
	return s.silent.Commit(ctx)
}

func dialectOf(driver string) sqllock.Dialect {
	return map[string]sqllock.Dialect{"pgx": postgres, "mysql": maria, "sqlite": sqlite}[driver]
}

// start starts a child process that uses db. The parameter more has further arguments for the
// child.
func (db *database) start(t testing.TB, program proc.Program, more ...string) *proc.Child {
	t.Helper()
	return program.Start(t, append([]string{db.driver, db.dsn, redistest.Shared(t).Addr()}, more...)...)
}

func TestAHolderThatWasPausedBeforeItsCommitDoesNotCommit(t *testing.T) {
	t.Parallel()
	forEach(t, func(t *testing.T, db *database) {
		key := t.Name()
		child := db.start(t, commitHolder, key)
		child.AwaitStop()
		want := int64(150)
		db.depositAsSuccessor(t, key, child.Resume)
		if result := child.Expect(t, "result"); result == "committed" {
			if db.dialect != sqlite {
				t.Error("the paused holder was committed")
			}
			want = 160 // on SQLite, the paused holder has committed before its successor could claim or read
		}
		db.checkBalance(t, want)
	})
}

// depositAsSuccessor deposits 50 under the lock that a paused child holds, and resumes the child.
// PostgreSQL and MariaDB end the paused transaction, so the child is resumed after the deposit.
// SQLite does not end it, so the child is resumed as soon as the lock has a new holder.
func (db *database) depositAsSuccessor(t testing.TB, key string, resume func()) {
	t.Helper()
	var seen lockertest.Recorder
	l := onRedis(t, locker.WithObserver(&seen))
	done := make(chan error, 1)
	go func() {
		done <- transact(t.Context(), l, db, locker.Rule{Key: key, TTL: patience}, deposit(50), sqllock.WithRetries(1000))
	}()
	if db.dialect == sqlite {
		seen.Await(t, func(r *lockertest.Recorder) bool { return len(r.Records(locker.OpAcquire)) > 0 })
		resume()
	}
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("the successor: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the successor is blocked by a holder that is paused")
	}
	if db.dialect != sqlite {
		resume()
	}
}
