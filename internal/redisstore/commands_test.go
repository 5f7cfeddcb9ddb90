package redisstore_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lead"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// sent returns how many commands clients have sent to the server, without those that scripts call,
// and without those that begin a connection. scripts is the number of scripts among them.
func sent(t *testing.T, admin *redis.Client) (scripts, all int) {
	t.Helper()
	info, err := admin.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, stat := range commandStat.FindAllStringSubmatch(info, -1) {
		n, _ := strconv.Atoi(stat[2])
		switch stat[1] {
		case "eval", "evalsha":
			scripts += n
		case "ping", "subscribe", "unsubscribe", "script|load", "wait":
			all += n
		}
	}
	return scripts, all + scripts
}

var commandStat = regexp.MustCompile(`(?m)^cmdstat_([^:]+):calls=(\d+)`)

// The table of docs/hosted.md says how many commands a process sends in a day while nothing
// happens. A TTL of 3 s stands for the TTL of the table: scripts are sent so many times in a TTL. The
// 1 000 leases have the TTL of their row, because the batches of their renewals depend on it.
func TestTheCommandsOfADayAreAsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/hosted.md")
	if err != nil {
		t.Fatal(err)
	}
	const ttl, observed = 3 * time.Second, 30 * time.Second // three pings, and ten TTLs
	candidates := func(t *testing.T, server *redistest.Server, n int) {
		for i := range n {
			leader, err := lead.New(newSingle(t, server.Client(t)), locker.Rule{Key: "job", TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { _ = leader.Run(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil }) })
			t.Cleanup(func() { stop(); running.Wait() })
			eventually(t, "it leads or waits", func() bool {
				_, leads := leader.Leading()
				return leads || i > 0 && inLine(t, server.Client(t), "job") == i
			})
		}
	}
	holds := func(t *testing.T, server *redistest.Server, n int, ttl time.Duration) {
		l := newSingle(t, server.Client(t))
		for i := range n {
			acquire(t, l, locker.Rule{Key: fmt.Sprint("held ", i), TTL: ttl})
		}
	}
	rows := []struct {
		row      string // the beginning of the row
		observed time.Duration
		scale    float64 // the TTL of the test ÷ the TTL of the row
		less     int     // the row whose processes run as well, so that their commands are left out
		start    func(t *testing.T, server *redistest.Server)
	}{
		{"holds nothing", observed, 1, -1, func(t *testing.T, server *redistest.Server) {
			backend := locktest.SingleStore(server.Client(t))
			redisstore.DelayLeaving(backend, 100*time.Millisecond)
			holder, l := newSingle(t, server.Client(t)), lockertest.NewLocker(t, backend)
			lease := acquire(t, holder, locker.Rule{Key: "a"})
			waiter := queues(t, l, locker.Rule{Key: "a"}, server.Client(t))
			release(t, lease)
			release(t, waiter.Granted(5*time.Second))
			eventually(t, "its subscription ends", func() bool { return len(subscribers(t, server.Client(t))) == 0 })
		}},
		{"holds one lease", observed, 0.1, -1, func(t *testing.T, server *redistest.Server) { holds(t, server, 1, ttl) }},
		{"holds 1 000 leases", 24 * time.Second, 1, -1, func(t *testing.T, server *redistest.Server) { holds(t, server, 1000, 30*time.Second) }},
		{"leads", observed, 0.3, -1, func(t *testing.T, server *redistest.Server) { candidates(t, server, 1) }},
		{"is the first candidate", observed, 0.3, 3, func(t *testing.T, server *redistest.Server) { candidates(t, server, 2) }},
		{"is a candidate behind that one", observed, 0.3, 4, func(t *testing.T, server *redistest.Server) { candidates(t, server, 3) }},
	}
	perDay := make([]float64, len(rows))
	var all sync.WaitGroup
	for i, row := range rows {
		server := redistest.Start(t)
		row.start(t, server)
		client := server.Client(t)
		scriptsBefore, allBefore := sent(t, client)
		all.Go(func() {
			<-time.After(row.observed)
			scripts, all := sent(t, client)
			scripts, all = scripts-scriptsBefore, all-allBefore
			perDay[i] = (float64(scripts)*row.scale + float64(all-scripts)) * float64(24*time.Hour) / float64(row.observed)
		})
	}
	all.Wait()
	for i, row := range rows {
		measured := perDay[i]
		if row.less >= 0 {
			measured -= perDay[row.less]
		}
		found := regexp.MustCompile(`(?m)^\| ` + row.row + `[^|]*\| ([\d ]+)`).FindSubmatch(page)
		if found == nil {
			t.Errorf("there is no row %q", row.row)
			continue
		}
		documented, err := strconv.ParseFloat(strings.ReplaceAll(string(found[1]), " ", ""), 64)
		if err != nil || math.Abs(measured-documented) > documented/4 {
			t.Errorf("a process that %s sends %.0f commands a day, and the page says %.0f: %v", row.row, measured, documented, err)
		}
	}
}
