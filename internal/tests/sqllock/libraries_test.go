package sqllock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jmoiron/sqlx"
	gormmysql "gorm.io/driver/mysql"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/latchkit/latchkit/contrib/gormlock"
	"github.com/latchkit/latchkit/contrib/pgxlock"
	"github.com/latchkit/latchkit/contrib/sqlxlock"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

var (
	libraryProcesses  = flag.Int("library-processes", 4, "processes that count with each library; the whole size is 16")
	libraryIncrements = flag.Int("library-increments", 50, "increments of each of them; the whole size is 1000")
)

// increment adds 1 to the account under the lock of rule, with one library for databases.
type increment func(ctx context.Context, rule locker.Rule) error

var fiveRetries = sqllock.WithRetries(5)

// counters maps each library to a function that opens a database with it.
var counters = map[string]func(l locker.Locker, driver, dsn string) increment{
	"database/sql": func(l locker.Locker, driver, dsn string) increment {
		db, err := sqllock.New(l, sqlx.MustOpen(driver, dsn), fiveRetries)
		must(err)
		return func(ctx context.Context, rule locker.Rule) error { return db.Do(ctx, rule, deposit(1)) }
	},
	"pgx": func(l locker.Locker, _, dsn string) increment {
		pool, err := pgxpool.New(context.Background(), dsn)
		must(err)
		db, err := pgxlock.New(l, pool, fiveRetries)
		must(err)
		return func(ctx context.Context, rule locker.Rule) error {
			return db.Do(ctx, rule, func(ctx context.Context, tx pgx.Tx) error {
				balance := 0
				if err := tx.QueryRow(ctx, "SELECT balance FROM accounts WHERE id = 1").Scan(&balance); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, "UPDATE accounts SET balance = $1 WHERE id = 1", balance+1)
				return err
			})
		}
	},
	"gorm": func(l locker.Locker, driver, dsn string) increment {
		dialector := gormpostgres.Open(dsn)
		if driver == "mysql" {
			dialector = gormmysql.Open(dsn)
		}
		pool, err := gorm.Open(dialector, &gorm.Config{Logger: logger.Discard})
		must(err)
		db, err := gormlock.New(l, pool, fiveRetries)
		must(err)
		type account struct{ ID, Balance int }
		return func(ctx context.Context, rule locker.Rule) error {
			return db.Do(ctx, rule, func(_ context.Context, tx *gorm.DB) error {
				var a account
				tx.Table("accounts").Where("id = ?", 1).Take(&a) // the error is ignored, as in many programs
				return tx.Table("accounts").Where("id = ?", 1).Update("balance", a.Balance+1).Error
			})
		}
	},
	"sqlx": func(l locker.Locker, driver, dsn string) increment {
		db, err := sqlxlock.New(l, sqlx.MustOpen(driver, dsn), fiveRetries)
		must(err)
		return func(ctx context.Context, rule locker.Rule) error {
			return db.Do(ctx, rule, func(ctx context.Context, tx *sqlx.Tx) error {
				var a struct{ Balance int }
				if err := tx.GetContext(ctx, &a, "SELECT balance FROM accounts WHERE id = 1"); err != nil {
					return err
				}
				a.Balance++
				_, err := tx.NamedExecContext(ctx, "UPDATE accounts SET balance = :balance WHERE id = 1", a)
				return err
			})
		}
	},
}

// countTTL is the TTL of the leases of the processes that count.
const countTTL = 400 * time.Millisecond

// libraryCounter is a process that increments the account a given number of times with a given
// library.
var libraryCounter = proc.Register("library counter", func(args []string) {
	w := newWorker(args)
	add := counters[args[5]](w.l, args[0], args[1])
	rule := locker.Rule{Key: args[3], TTL: countTTL}
	left, err := strconv.Atoi(args[4])
	must(err)
	fmt.Println("ready")
	proc.Listen()
	refused := 0
	for left > 0 {
		err := add(context.Background(), rule)
		if e, ok := errors.AsType[*sqllock.Error](err); ok && e.Op != "" {
			committed, unknown := resolve(context.Background(), w.db, e.Op)
			must(unknown)
			if committed {
				err = nil
			}
		}
		if err != nil {
			refused++
			continue
		}
		left--
	}
	fmt.Println("refused", refused)
	proc.Listen()
})

// Processes that use one library are paused at random times. Nevertheless, each of their
// updates is in the account exactly once. The full size of this test takes half an hour:
// -library-processes 16 -library-increments 1000 -timeout 60m.
func TestPausedProcessesCountExactlyWithEachLibrary(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		library string
		d       sqllock.Dialect
	}{
		{"database/sql", postgres}, {"database/sql", maria}, {"pgx", postgres},
		{"gorm", postgres}, {"gorm", maria}, {"sqlx", postgres}, {"sqlx", maria},
	} {
		t.Run(tc.library+" on "+nameOf[tc.d], func(t *testing.T) {
			db := newDatabase(t, tc.d)
			db.exec(t, "UPDATE accounts SET balance = 0 WHERE id = 1")
			var all []*proc.Child
			for range *libraryProcesses {
				all = append(all, db.start(t, libraryCounter, t.Name(), strconv.Itoa(*libraryIncrements), tc.library))
			}
			for _, child := range all {
				child.Expect(t, "ready")
				child.Send("go")
			}
			over, paused := make(chan struct{}), make(chan int)
			l := onRedis(t)
			go func() { paused <- pauseHolders(t, l, all, t.Name(), countTTL, over) }()
			want := int64(*libraryProcesses * *libraryIncrements)
			for db.balance(t) < want { // a loop of its own, because a child may need longer than other waits allow
				select {
				case <-time.After(50 * time.Millisecond):
				case <-t.Context().Done():
					t.Fatal(t.Context().Err())
				}
			}
			refused := 0
			close(over)
			pauses := <-paused
			for _, child := range all {
				n, err := strconv.Atoi(child.Expect(t, "refused"))
				if err != nil {
					t.Fatal(err)
				}
				refused += n
			}
			t.Logf("%d increments, %d pauses, %d transactions refused", want, pauses, refused)
			if pauses == 0 {
				t.Error("the control: nobody was paused")
			}
			db.checkBalance(t, want)
		})
	}
}

// pauseHolders pauses the holder of key again and again, until stopped is closed. If no child
// holds the key at present, it pauses any child. Between two pauses, it waits for a random time
// up to interval. It returns the number of pauses.
func pauseHolders(t *testing.T, l *locker.Engine, all []*proc.Child, key string, interval time.Duration, stopped <-chan struct{}) (pauses int) {
	t.Helper()
	for {
		child := all[rand.IntN(len(all))]
		if info, err := l.Inspect(t.Context(), key); err == nil && info.Held {
			for _, c := range all {
				if strconv.Itoa(c.Pid()) == info.Metadata {
					child = c
				}
			}
		}
		child.Pause()
		pauses++
		select {
		case <-time.After(time.Duration(rand.Int64N(int64(2 * countTTL)))):
			child.Resume()
		case <-stopped:
			child.Resume()
			return pauses
		}
		select { // time in which the other processes work
		case <-time.After(time.Duration(rand.Int64N(int64(interval)))):
		case <-stopped:
			return pauses
		}
	}
}
