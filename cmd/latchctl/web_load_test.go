package main

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

var (
	webKeys    = flag.Int("web-keys", 1_000, "how many keys are locked while latchctl web is measured")
	webWaiters = flag.Int("web-waiters", 100, "how many callers wait for them; a multiple of 20")
)

// With many keys and waiters, the page stays small, and the server gets the commands that
// docs/operations.md states. With -web-keys 10000 -web-waiters 1000, the log has the figures of the
// document.
func TestWebStaysSmallWithManyKeysAndWaiters(t *testing.T) {
	t.Parallel()
	const queues = 20
	keys, waiters := *webKeys, *webWaiters
	server := redistest.Start(t)
	client := server.Client(t)
	l := locktest.Single(t, client)
	var work sync.WaitGroup
	for part := range 50 {
		work.Go(func() {
			for i := part; i < keys; i += 50 {
				if _, err := l.Acquire(t.Context(), locker.Rule{Key: fmt.Sprintf("order:%05d", i), TTL: 10 * time.Minute, Metadata: "checkout-7f9c"}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); work.Wait() })
	for process := range waiters / queues {
		waiting := locktest.Single(t, server.Client(t))
		for i := range queues {
			work.Go(func() {
				for ctx.Err() == nil { // on a busy machine, an attempt may have no answer in time
					_, _ = waiting.Acquire(ctx, locker.Rule{Key: fmt.Sprintf("order:%05d", i), Metadata: fmt.Sprint("process ", process)})
				}
			})
		}
	}
	locktest.Eventually(t, "all wait", func() bool {
		n := 0
		for i := range queues {
			info, err := l.Inspect(t.Context(), fmt.Sprintf("order:%05d", i))
			if err != nil {
				t.Fatal(err)
			}
			n += info.Waiters
		}
		return n == waiters
	})

	p := openWeb(t, []string{"redis://" + server.Addr()}, "--rate", "2000")
	before, start := commandsOf(t, client), time.Now()
	p.stream(`"name":"last full scan","value":"`, fmt.Sprintf(`"name":"held","value":"%d"`, keys))
	took := time.Since(start)
	locktest.Eventually(t, "all keys are seen", func() bool { _, n := p.rows(""); return n == keys })
	total, text := 0.0, ""
	for name, calls := range commandsOf(t, client) {
		if calls -= before[name]; calls > 50 {
			text += fmt.Sprintf(" %s %.0f", name, calls)
		}
		total += calls
	}
	t.Logf("the first look at all keys took %v; the server ran %.0f commands, scripts included:%s", took, total, text)

	asked := time.Now()
	table := p.get("keys?sort=waiters")
	t.Logf("the table: %d bytes in %v", len(table), time.Since(asked))
	asked = time.Now()
	d, detail := p.key("order:00003")
	t.Logf("a key with %d waiters: %d bytes in %v", len(d.Queue), len(detail), time.Since(asked))
	size := len(p.get("")) + len(p.get("app.js")) + len(p.get("style.css"))
	t.Logf("the page: %d bytes", size)
	rows, _ := p.rows("sort=waiters")
	if len(rows) != webRows || rows[0].Waiters != waiters/queues || len(d.Queue) != waiters/queues {
		t.Errorf("%d rows, the first has %d waiters; the queue of a key has %d", len(rows), rows[0].Waiters, len(d.Queue))
	}
	if size > 100_000 || len(table) > 100_000 || len(detail) > 20_000 {
		t.Errorf("the page has grown: %d, %d and %d bytes", size, len(table), len(detail))
	}
}
