package sqllock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

var (
	processes  = flag.Int("processes", 16, "processes that count together")
	increments = flag.Int("increments", 6, "increments of each of them; the whole size is 1000")
)

const (
	countTTL = 400 * time.Millisecond
	step     = 3 // after this number of increments, a child reports its progress
)

// counter is a process that increments the account a given number of times. At its end, it prints
// how many increments were refused.
var counter = proc.Register("counter", func(args []string) {
	w := newWorker(args)
	rule := locker.Rule{Key: args[3], TTL: countTTL}
	left, err := strconv.Atoi(args[4])
	must(err)
	fmt.Println("ready")
	proc.Listen()
	refused := 0
	for left > 0 {
		err := transact(context.Background(), w.l, w.db, rule, deposit(1), sqllock.WithRetries(5))
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
		if left--; left%step == 0 {
			fmt.Println("counted")
		}
	}
	fmt.Println("refused", refused)
	proc.Listen()
})

// Processes that increment one account are paused at random times. Nevertheless, each increment
// is in the account exactly once.
func TestManyPausedProcessesCountExactly(t *testing.T) {
	t.Parallel()
	for _, d := range []sqllock.Dialect{postgres, maria} {
		t.Run(nameOf[d], func(t *testing.T) {
			db := newDatabase(t, d)
			db.exec(t, "UPDATE accounts SET balance = 0 WHERE id = 1")
			var all []*proc.Child
			for range *processes {
				all = append(all, db.start(t, counter, t.Name(), strconv.Itoa(*increments)))
			}
			for _, child := range all {
				child.Expect(t, "ready")
				child.Send("go")
			}
			over := make(chan struct{})
			paused := make(chan int)
			l := onRedis(t)
			go func() { paused <- pauseHolders(t, l, all, t.Name(), countTTL/8, over) }()
			stop := sync.OnceValue(func() int { close(over); return <-paused })
			defer stop() // also when the test fails
			refused := 0
			for _, child := range all {
				for range *increments / step {
					child.Expect(t, "counted")
				}
				n, err := strconv.Atoi(child.Expect(t, "refused"))
				if err != nil {
					t.Fatal(err)
				}
				refused += n
			}
			t.Logf("%d increments, %d pauses, %d transactions refused", *processes**increments, stop(), refused)
			db.checkBalance(t, int64(*processes**increments))
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
