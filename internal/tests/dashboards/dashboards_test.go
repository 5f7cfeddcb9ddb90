package dashboards

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// holder is a process that takes a lock. The test kills it.
var holder = proc.Register("holder", func(args []string) {
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: args[0]}))
	if err != nil {
		panic(err)
	}
	if _, err := l.Acquire(context.Background(), locker.Rule{Key: "leader:1", TTL: time.Minute}); err != nil {
		panic(err)
	}
	fmt.Println("held")
	proc.Listen()
})

func TestMain(m *testing.M) { redistest.Main(proc.Main(m)) }

// file returns the text of a file in dashboards/.
func file(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../../dashboards", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// promtool runs a command of promtool in the folder dashboards.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "promtool", args...)
	cmd.Dir = "../../../dashboards"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v (`make tools` installs it)\n%s", strings.Join(args, " "), err, out)
	}
}

// The alert rules are valid, and promtool's tests of the rules pass. Each rule links to an
// existing section of the runbook.
func TestRules(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "alerts.yml")
	promtool(t, "test", "rules", "alerts_test.yml")
	rules, runbook := file(t, "alerts.yml"), file(t, "../docs/runbook.md")
	links := regexp.MustCompile(`runbook_url: https://github.com/latchkit/latchkit/blob/main/docs/runbook\.md#(\S+)`).FindAllStringSubmatch(rules, -1)
	if alerts := strings.Count(rules, "- alert:"); len(links) != alerts || alerts == 0 {
		t.Errorf("%d alerts have %d links to the runbook", alerts, len(links))
	}
	for _, link := range links {
		if heading := "\n## " + strings.ReplaceAll(link[1], "-", " ") + "\n"; !strings.Contains(strings.ToLower(runbook), heading) {
			t.Errorf("docs/runbook.md has no section %q", strings.TrimSpace(heading))
		}
	}
	for _, m := range regexp.MustCompile(`- alert: (\S+)`).FindAllStringSubmatch(rules, -1) {
		if !strings.Contains(runbook, m[1]) {
			t.Errorf("docs/runbook.md does not name %s", m[1])
		}
	}
}

// expressions returns the queries of the dashboard's panels, with values in place of the
// variables of Grafana.
func expressions(t *testing.T) (all map[string]string) {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(file(t, "latchkit.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	all = make(map[string]string)
	filled := strings.NewReplacer("$__rate_interval", "1m", "$__range", "1m", "$name", ".*")
	for _, p := range dashboard.Panels {
		for i, target := range p.Targets {
			all[fmt.Sprintf("%s (%d)", p.Title, i+1)] = filled.Replace(target.Expr)
		}
	}
	if len(all) < 20 {
		t.Fatalf("the dashboard has %d expressions", len(all))
	}
	return all
}

// soon turns the released alert rules into rules that fire within seconds. Only times and
// limits differ.
var soon = strings.NewReplacer("[2m]", "[20s]", "[5m]", "[20s]", "[15m]", "[20s]", "offset 2m", "offset 20s", "offset 5m", "offset 20s",
	"offset 15m", "offset 20s", "for: 1m", "for: 0s", "for: 2m", "for: 0s", "for: 3m", "for: 0s", "for: 5m", "for: 0s", "> 4\n", "> 0.2\n")

// The test acquires locks, waits for locks, loses locks and is refused locks. Then every panel
// shows data. Every alert fires when the test provokes its cause.
func TestDashboardAndAlerts(t *testing.T) {
	t.Parallel()
	observer, address := observed(t)
	w := &world{t: t, observer: observer, redis: redistest.Start(t)}
	w.l = locktest.Single(t, w.redis.Client(t), locker.WithObserver(observer))
	p := launch(t, address, soon.Replace(file(t, "alerts.yml")))
	w.traffic()
	w.slowRenewals()

	p.awaitAlert("LatchkitUnavailable")
	p.awaitAlert("LatchkitUnguarded")
	p.awaitAlert("LatchkitAnswersUnavailable")
	p.awaitAlert("LatchkitStaleHolder")

	w.fencesRegress()
	p.awaitAlert("LatchkitFenceRegressed")
	w.flush()
	p.awaitAlert("LatchkitLockLost")
	w.holderDies(func() { p.awaitAlert("LatchkitNobodyLeads") })
	p.awaitAlert("LatchkitWaitTooLong")
	w.foreignKeyStays(func() { p.awaitAlert("LatchkitNobodyGetsIn") })
	w.nodeStops(func() { p.awaitAlert("LatchkitNodeOut") })

	for panel, expression := range expressions(t) {
		n, err := 0, error(nil)
		for until := time.Now().Add(10 * time.Second); n == 0 && err == nil && time.Now().Before(until); {
			if n, err = p.ask(expression); n == 0 {
				<-time.After(100 * time.Millisecond)
			}
		}
		if err != nil || n == 0 {
			t.Errorf("panel %s: %d series, %v, for %s", panel, n, err, expression)
		}
	}
}

// world has the locks whose metrics Prometheus collects.
type world struct {
	t        *testing.T
	observer locker.Observer
	redis    *redistest.Server
	l        *locker.Engine
}

// traffic uses locks with and without contention. It also causes each rare result once.
func (w *world) traffic() {
	w.t.Helper()
	other := locktest.Single(w.t, w.redis.Client(w.t), locker.WithObserver(w.observer))
	ctx := w.t.Context()
	var callers sync.WaitGroup
	for i, l := range []*locker.Engine{w.l, other, w.l, other} {
		callers.Go(func() {
			for n := range 40 {
				rule := locker.Rule{Key: "order:1", TTL: 300 * time.Millisecond}
				if n%2 == 0 {
					rule.Key = "leader:1"
				}
				err := locker.Run(ctx, l, rule, func(context.Context) error {
					<-time.After(time.Duration(1+i) * time.Millisecond)
					return nil
				})
				if err != nil {
					w.t.Error(err)
				}
			}
		})
	}
	callers.Wait()
	lease := locktest.Acquire(w.t, w.l, locker.Rule{Key: "order:2", TTL: 300 * time.Millisecond})
	<-time.After(500 * time.Millisecond) // the Locker renews the lease in this time
	_, end := lease.Observe(ctx, "transact")
	end(locker.Outcome{Result: "stale_fence", Err: sqllock.ErrStaleFence})
	locktest.Release(w.t, lease)
	w.l.ObserveRequest(ctx, locker.RequestEvent{Name: "order", Result: "replayed"})
	w.l.ObserveRequest(ctx, locker.RequestEvent{Name: "order", Result: "unguarded"})
	w.l.ObserveRequest(ctx, locker.RequestEvent{Name: "idempotency", Result: "answers_unavailable"})
	dead := locktest.Single(w.t, locktest.DeadServer(w.t), locker.WithObserver(w.observer))
	_, err := dead.Acquire(ctx, locker.Rule{Key: "order:3", Wait: locker.NoWait})
	_ = locktest.WantErr(w.t, err, "order:3", locker.ErrUnavailable)
}

// slowRenewals stops a server for a while, so that renewals fail, but no lease is lost.
func (w *world) slowRenewals() {
	w.t.Helper()
	slow := redistest.Start(w.t)
	l := locktest.Single(w.t, slow.Client(w.t, func(o *redis.Options) {
		o.ReadTimeout, o.ContextTimeoutEnabled = 300*time.Millisecond, true
	}), locker.WithObserver(w.observer))
	lease := locktest.Acquire(w.t, l, locker.Rule{Key: "slow:1", TTL: 6 * time.Second})
	slow.Pause()
	<-time.After(3 * time.Second)
	slow.Resume()
	locktest.Release(w.t, lease)
}

// fencesRegress records a large fence in the database, and makes the lock server forget this
// fence.
func (w *world) fencesRegress() {
	w.t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(w.t.TempDir(), "accounts.db"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = db.Close() })
	ctx := w.t.Context()
	h, err := sqllock.New(w.l, db)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := h.Migrate(ctx); err != nil {
		w.t.Fatal(err)
	}
	do := func() error {
		return h.Do(ctx, locker.Rule{Key: "account:1"}, func(context.Context, *sqllock.Tx) error { return nil })
	}
	if err := w.l.RaiseFence(ctx, "account:1", uint64(time.Now().Add(time.Hour).UnixMicro())); err != nil {
		w.t.Fatal(err)
	}
	if err := do(); err != nil {
		w.t.Fatal(err)
	}
	if err := w.redis.Client(w.t).FlushAll(ctx).Err(); err != nil {
		w.t.Fatal(err)
	}
	if err := do(); !errors.Is(err, sqllock.ErrFenceRegressed) {
		w.t.Fatalf("the database after the server has forgotten its fence: %v", err)
	}
}

// flush empties the server while a caller holds a lock.
func (w *world) flush() {
	w.t.Helper()
	lease := locktest.Acquire(w.t, w.l, locker.Rule{Key: "order:4", TTL: time.Second})
	if err := w.redis.Client(w.t).FlushAll(w.t.Context()).Err(); err != nil {
		w.t.Fatal(err)
	}
	locktest.Lost(w.t, lease, locker.ErrLost)
}

// holderDies kills the process that holds a lock while another caller waits for the lock.
func (w *world) holderDies(meanwhile func()) {
	w.t.Helper()
	child := holder.Start(w.t, w.redis.Addr())
	child.Expect(w.t, "held")
	waiter := locktest.Queues(w.t, w.l, locker.Rule{Key: "leader:1"}, w.redis.Client(w.t))
	child.Kill()
	meanwhile()
	info, err := w.l.Inspect(w.t.Context(), "leader:1")
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.l.Revoke(w.t.Context(), "leader:1", info.Fence, "its process was killed"); err != nil {
		w.t.Fatal(err)
	}
	locktest.Release(w.t, waiter.Granted(20*time.Second))
}

// foreignKeyStays lets a caller wait for a key of another program, which never expires.
func (w *world) foreignKeyStays(meanwhile func()) {
	w.t.Helper()
	c := w.redis.Client(w.t)
	if err := c.Set(w.t.Context(), "file:1", "theirs", 0).Err(); err != nil {
		w.t.Fatal(err)
	}
	waiter := locktest.Queues(w.t, w.l, locker.Rule{Key: "file:1"}, c)
	meanwhile()
	if err := c.Del(w.t.Context(), "file:1").Err(); err != nil {
		w.t.Fatal(err)
	}
	locktest.Release(w.t, waiter.Granted(20*time.Second))
}

// nodeStops kills a node of a quorum that is in use.
func (w *world) nodeStops(meanwhile func()) {
	w.t.Helper()
	var clients []locker.Client
	var nodes []*redistest.Server
	for range 3 {
		s := redistest.Start(w.t)
		nodes, clients = append(nodes, s), append(clients, s.Client(w.t))
	}
	// A node counts as out when its last vote is older than the longest TTL. The test sets this
	// TTL to one second, so that it need not wait for long.
	short := locker.WithOptions(locker.WithTTL(time.Second), locker.WithMaxTTL(time.Second))
	if err := locker.EnrollRedlock(w.t.Context(), clients, short); err != nil {
		w.t.Fatal(err)
	}
	l, err := locker.NewRedlock(clients, short, locker.WithObserver(w.observer))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = l.Close(context.Background()) })
	locktest.Release(w.t, locktest.Acquire(w.t, l, locker.Rule{Key: "order:5"}))
	nodes[0].Kill()
	locktest.Release(w.t, locktest.Acquire(w.t, l, locker.Rule{Key: "order:5"}))
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			// asks all nodes, as a page for operators does, so the Locker detects that the node
			// is down
			_, _ = l.Nodes(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	meanwhile()
}
