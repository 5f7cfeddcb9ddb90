package foreign

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// worker locks one key again and again until the test stops it. Its arguments are the library, the
// key, the worker's name, and the ports. It makes no pauses, so the workers always compete for
// the key.
var worker = proc.Register("worker", func(args []string) {
	library, key, ports := args[0], args[1], args[3:]
	v := visitor{clients(ports)[0], key + ":log", args[2]}
	once, err := worksWith(library, key, ports, v)
	if err != nil {
		fail(err)
	}
	var stopped atomic.Bool
	over := make(chan struct{})
	go func() {
		defer close(over)
		for !stopped.Load() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			if err := once(ctx); err != nil {
				fail(fmt.Errorf("%s: %w", v.name, err))
			}
			cancel()
		}
	}()
	fmt.Println("ready", v.name)
	proc.Listen()
	stopped.Store(true)
	<-over
	fmt.Println("answer stopped")
})

// leaseOfWorkers is the TTL of the workers' locks: so long, the key of a killed worker stays
// locked.
const leaseOfWorkers = 2 * time.Second

// worksWith returns a function that makes one visit under a lock of a library, or of a kind of
// Locker.
func worksWith(library, key string, ports []string, v visitor) (func(context.Context) error, error) {
	var old locks
	switch library {
	case "redislock":
		old = newRedislock(ports)
	case "redsync":
		old = newRedsync(ports)
	default:
		l, err := newLocker(library, clients(ports))
		return func(ctx context.Context) error { return visitWithFence(ctx, l, key, v) }, err
	}
	return func(ctx context.Context) error { return visit(ctx, old, key, leaseOfWorkers, v) }, nil
}

// visitWithFence makes a visit under a lock of latchkit, and also appends the fence to a
// separate list.
func visitWithFence(ctx context.Context, l *locker.Engine, key string, v visitor) error {
	lease, err := l.Acquire(ctx, locker.Rule{Key: key, TTL: leaseOfWorkers})
	if err != nil {
		return err
	}
	if err := v.redis.RPush(ctx, key+":fences", lease.Fence()).Err(); err != nil {
		return err
	}
	if err := v.visit(ctx); err != nil {
		return err
	}
	return lease.Release(ctx)
}

// Ten processes lock with another library. The test replaces these processes one by one, while all
// processes want the key. It kills three processes instead of stopping them: two old processes and
// a new process.
func TestTenProcessesMoveToLatchkitOneByOne(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		library, kind string
		servers       int
	}{
		{"redislock", "migrating", 1},
		{"redislock", "polling.New", 1},
		{"redsync", "migrating", 1},
		{"redsync", "NewRedlock", 3},
	} {
		t.Run(c.library+" to "+c.kind, func(t *testing.T) {
			t.Parallel()
			newMigration(t, c.library, c.kind, c.servers).run()
		})
	}
}

type migration struct {
	*testing.T
	library, kind string
	key           string
	// a client of the server on which the workers write the list of visits
	redis   *redis.Client
	ports   []string
	workers []*peer
	killed  []string
}

func newMigration(t *testing.T, library, kind string, n int) *migration {
	t.Helper()
	m := &migration{T: t, library: library, kind: kind, key: "move"}
	var servers []*redistest.Server
	for range n {
		s := redistest.Start(t)
		servers = append(servers, s)
		m.ports = append(m.ports, strconv.Itoa(s.Port()))
	}
	if n > 1 {
		enroll(t, servers)
	}
	m.redis = servers[0].Client(t)
	return m
}

func (m *migration) run() {
	const processes = 10
	for i := range processes {
		m.workers = append(m.workers, m.start(m.library, fmt.Sprint("old-", i)))
	}
	for i := range processes {
		m.visits(10)
		if i == 3 || i == 7 {
			m.workers[i].Kill()
			m.killed = append(m.killed, fmt.Sprint("old-", i))
		} else {
			m.stop(m.workers[i])
		}
		m.workers[i] = m.start(m.kind, fmt.Sprint("new-", i))
	}
	m.workers[0].Kill()
	m.killed = append(m.killed, "new-0")
	m.visits(10)
	for _, w := range m.workers[1:] {
		m.stop(w)
	}
	log := m.list("log")
	m.Logf("%d visits", checkVisits(m, log, m.killed...))
	m.grow(m.list("fences"))
}

func (m *migration) start(library, name string) *peer {
	m.Helper()
	return newPeer(m, worker.Start(m, append([]string{library, m.key, name}, m.ports...)...))
}

func (m *migration) stop(w *peer) {
	m.Helper()
	w.Send("stop")
	w.awaitAnswer(m, "stopped")
}

// visits waits until there are n more visits.
func (m *migration) visits(n int) {
	m.Helper()
	length := func() int64 { return m.redis.LLen(m.Context(), m.key+":log").Val() }
	until := length() + int64(2*n)
	locktest.Eventually(m.T, "the workers visit", func() bool { return length() >= until })
}

func (m *migration) list(name string) []string {
	m.Helper()
	all, err := m.redis.LRange(m.Context(), m.key+":"+name, 0, -1).Result()
	if err != nil {
		m.Fatal(err)
	}
	return all
}

// grow checks that the fences of all visits with latchkit grow. Visits with polling.New have no
// fences.
func (m *migration) grow(fences []string) {
	m.Helper()
	last := uint64(0)
	for i, text := range fences {
		fence, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			m.Fatal(err)
		}
		if m.kind != "polling.New" && fence <= last {
			m.Errorf("visit %d of latchkit has the fence %d after %d", i, fence, last)
		}
		last = fence
	}
	if len(fences) < 10 {
		m.Errorf("latchkit visited %d times", len(fences))
	}
}
