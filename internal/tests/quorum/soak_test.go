package quorum

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

var soakFor = flag.Duration("soak", 20*time.Second, "how long each soak test runs")

func TestMain(m *testing.M) { redistest.Main(m) }

// Five processes with two callers each lock on real servers. At any time, a minority of the servers
// has a fault. A faulty server is paused, emptied, restarted or cut off, or it loses or delays
// calls and answers. No two callers hold a key at once, fences never become smaller, and at the end
// all nodes vote.
func TestSoak(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			t.Parallel()
			soak(t, n)
		})
	}
}

// soakOptions make a server that forgot its leases vote again after 0.6 s.
var soakOptions = []locker.QuorumOption{
	locker.WithTTL(400 * time.Millisecond), locker.WithMaxTTL(400 * time.Millisecond),
	locker.WithMaxSkew(50 * time.Millisecond), locker.WithNodeTimeout(100 * time.Millisecond),
}

const soakWait = 700 * time.Millisecond

// These are the faults between one process and one server: fine means none.
const (
	fine int32 = iota
	cutOff
	losesAnswers
	slow
	executesLate
)

// A way is the client that one process uses for one server. The calls of this client may be
// delayed, lost or repeated.
type way struct {
	*redis.Client
	trouble atomic.Int32
}

func (w *way) Process(ctx context.Context, cmd redis.Cmder) error {
	pause := func(most int) { time.Sleep(time.Duration(rand.IntN(most)) * time.Millisecond) }
	lost := func() error {
		cmd.SetErr(io.ErrUnexpectedEOF)
		return io.ErrUnexpectedEOF
	}
	switch w.trouble.Load() {
	case cutOff:
		pause(30)
		return lost()
	case losesAnswers:
		if rand.IntN(3) == 0 {
			_ = w.Client.Process(ctx, cmd)
			return lost()
		}
	case slow:
		pause(200)
	case executesLate:
		if rand.IntN(2) == 0 {
			args := cmd.Args()
			go func() {
				pause(600)
				ctx := context.Background()
				_ = w.Client.Process(ctx, redis.NewCmd(ctx, args...))
			}()
			return lost()
		}
	}
	return w.Client.Process(ctx, cmd)
}

// board has the present holder of each key, of all processes.
type board struct {
	mu      sync.Mutex
	holders map[string]*locker.Lease
	fences  map[string]uint64 // for each key: the largest fence
	grants  int
}

func (b *board) granted(t *testing.T, l *locker.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	holds := func(l *locker.Lease) bool { return l.Context().Err() == nil && time.Now().Before(l.Expires()) }
	if !holds(l) {
		return
	}
	key := l.Key()
	if h := b.holders[key]; h != nil && holds(h) {
		t.Errorf("two hold %s: fence %d, with %v left, and fence %d", key, h.Fence(), time.Until(h.Expires()), l.Fence())
	}
	if l.Fence() <= b.fences[key] {
		t.Errorf("fence %d of %s after %d", l.Fence(), key, b.fences[key])
	}
	b.holders[key], b.fences[key] = l, max(b.fences[key], l.Fence())
	b.grants++
}

// remove removes l from the present holders. The test calls remove just before a holder's
// release.
func (b *board) remove(l *locker.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holders[l.Key()] == l {
		delete(b.holders, l.Key())
	}
}

func soak(t *testing.T, n int) {
	var servers []*redistest.Server
	for range n {
		servers = append(servers, redistest.Start(t))
	}
	ways, engines := processes(t, servers)
	lockFor(t, *soakFor, engines, func() {
		heal := harm(servers, ways)
		time.Sleep(time.Duration(50+rand.IntN(700)) * time.Millisecond)
		heal()
		time.Sleep(soakWait + 500*time.Millisecond)
	})
}

// processes makes five Lockers. Each Locker reaches each server by a way of its own.
func processes(t *testing.T, servers []*redistest.Server) (ways [][]*way, engines []*locker.Engine) {
	var all []locker.Client
	for _, s := range servers {
		all = append(all, s.Client(t))
	}
	if err := locker.EnrollRedlock(t.Context(), all, soakOptions...); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		var mine []*way
		var cs []locker.Client
		for _, s := range servers {
			w := &way{Client: s.Client(t, func(o *redis.Options) { o.MaxRetries = -1 })}
			mine, cs = append(mine, w), append(cs, w)
		}
		l, err := locker.NewRedlock(cs, soakOptions...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		ways, engines = append(ways, mine), append(engines, l)
	}
	return ways, engines
}

// lockFor makes two callers of each process lock for the time d. Meanwhile it calls the
// function trouble again and again. At the end, all nodes must vote.
func lockFor(t *testing.T, d time.Duration, engines []*locker.Engine, trouble func()) {
	b := &board{holders: map[string]*locker.Lease{}, fences: map[string]uint64{}}
	end := time.Now().Add(d)
	var working sync.WaitGroup
	for _, l := range engines {
		for range 2 {
			working.Go(func() {
				for time.Now().Before(end) {
					work(t, l, b)
				}
			})
		}
	}
	faults := 0
	for ; time.Now().Before(end); faults++ {
		trouble()
	}
	working.Wait()
	t.Logf("%d grants, %d times trouble", b.grants, faults)
	if b.grants < int(d/time.Second) {
		t.Errorf("%d grants in %v: the test shows little", b.grants, d)
	}
	for i := range engines {
		votes := false
		for try := 0; try < 200 && !votes; try++ {
			nodes, err := engines[i].Nodes(t.Context())
			votes = err == nil
			for _, node := range nodes {
				votes = votes && node.State == store.NodeVotes
			}
			time.Sleep(50 * time.Millisecond)
		}
		if !votes {
			t.Errorf("process %d: not all nodes vote", i)
		}
	}
}

// harm causes a fault at a minority of the servers. It returns a function that ends the fault.
func harm(servers []*redistest.Server, ways [][]*way) (heal func()) {
	var heals []func()
	trouble := rand.Int32N(7)
	for _, i := range rand.Perm(len(servers))[:len(servers)/2] {
		s := servers[i]
		switch trouble {
		case 0:
			s.Pause()
			heals = append(heals, s.Resume)
		case 5:
			c := redis.NewClient(&redis.Options{Addr: s.Addr()})
			_ = c.FlushAll(context.Background()).Err()
			_ = c.Close()
		case 6:
			s.Restart()
		default:
			for _, mine := range ways {
				if rand.IntN(2) == 0 {
					mine[i].trouble.Store(trouble)
				}
				heals = append(heals, func() { mine[i].trouble.Store(fine) })
			}
		}
	}
	return func() {
		for _, heal := range heals {
			heal()
		}
	}
}

// work acquires and releases a key once. Random choices decide the length of the hold, and whether
// the wait is cancelled.
func work(t *testing.T, l *locker.Engine, b *board) {
	rule := locker.Rule{Key: fmt.Sprint("k", rand.IntN(2)), Wait: 5 * time.Second}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if rand.IntN(10) == 0 {
		time.AfterFunc(time.Duration(rand.IntN(50))*time.Millisecond, cancel)
	}
	lease, err := l.Acquire(ctx, rule)
	if err != nil {
		time.Sleep(time.Millisecond)
		return
	}
	b.granted(t, lease)
	time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
	if rand.IntN(20) == 0 {
		time.Sleep(400 * time.Millisecond)
	}
	b.remove(lease)
	_ = lease.Release(context.Background())
}
