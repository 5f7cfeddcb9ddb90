package locker_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/locker"
)

func TestNewRedlockSaysWhatIsWrongWithItsNodes(t *testing.T) {
	t.Parallel()
	node := func(port int) locker.Client {
		return redis.NewClient(&redis.Options{Addr: fmt.Sprint("10.0.0.1:", port)})
	}
	one := node(1)
	for _, c := range []struct {
		says    string
		clients []locker.Client
		options []locker.QuorumOption
	}{
		{"0 clients; give an odd number, at least 3", nil, nil},
		{"use NewSingle for one", []locker.Client{one}, nil},
		{"4 clients; give an odd number", []locker.Client{one, node(2), node(3), node(4)}, nil},
		{"at most 31", append([]locker.Client{}, manyNodes(33)...), nil},
		{"client 1 is nil", []locker.Client{one, (*redis.Client)(nil), node(3)}, nil},
		{"client 2 is nil", []locker.Client{one, node(2), nil}, nil},
		{"clients 0 and 2 are the same", []locker.Client{one, node(2), one}, nil},
		{"clients 1 and 2 both lead to 10.0.0.1:2", []locker.Client{one, node(2), node(2)}, nil},
		{"a *redis.Ring, which moves keys", []locker.Client{one, node(2), redis.NewRing(&redis.RingOptions{})}, nil},
		{"shorter than the default TTL 2m0s", []locker.Client{one, node(2), node(3)}, []locker.QuorumOption{locker.WithTTL(2 * time.Minute)}},
		{"WithNodeTimeout(0s)", []locker.Client{one, node(2), node(3)}, []locker.QuorumOption{locker.WithNodeTimeout(0)}},
		{"WithMaxSkew(-1s)", []locker.Client{one, node(2), node(3)}, []locker.QuorumOption{locker.WithMaxSkew(-time.Second)}},
	} {
		_, err := locker.NewRedlock(c.clients, c.options...)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "latchkit: ") {
			t.Errorf("NewRedlock: %v, want %q", err, c.says)
		}
		if err := locker.EnrollRedlock(t.Context(), c.clients, c.options...); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("EnrollRedlock: %v, want %q", err, c.says)
		}
	}
}

func manyNodes(n int) (all []locker.Client) {
	for i := range n {
		all = append(all, redis.NewClient(&redis.Options{Addr: fmt.Sprint("10.0.1.1:", i+1)}))
	}
	return all
}

func TestLeasesOnQuorumsAreNoLongerThanTheirQuarantine(t *testing.T) {
	t.Parallel()
	l := redlockOn(t, enrolled(t, 3))
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", TTL: 61 * time.Second})
	wantErr(t, err, "a", locker.ErrInvalidRule)
	release(t, acquire(t, l, locker.Rule{Key: "a", TTL: time.Minute}))
}

// The same server behind two addresses is found out by what it says of itself.
func TestAServerDoesNotVoteTwice(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	again := servers[0].Client(t, func(o *redis.Options) { o.Addr = chaos.NewProxy(t, servers[0].Addr()).Addr() })
	third := servers[0].Client(t, func(o *redis.Options) { o.Addr = chaos.NewProxy(t, servers[0].Addr()).Addr() })
	two := newRedlock(t, []locker.Client{servers[0].Client(t), again, servers[1].Client(t)})
	lease := acquire(t, two, locker.Rule{Key: "a"})
	if n := servers[0].Client(t).Exists(t.Context(), "a").Val() + servers[1].Client(t).Exists(t.Context(), "a").Val(); n != 2 {
		t.Fatalf("%d servers have voted, want 2", n)
	}
	release(t, lease)

	one := newRedlock(t, []locker.Client{servers[0].Client(t), again, third})
	_, err := one.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 200 * time.Millisecond})
	wantErr(t, err, "a", locker.ErrQuorum, locker.ErrUnavailable, locker.ErrUnsupported)
	wantNot(t, err, locker.ErrBusy)
	if !strings.Contains(err.Error(), "the same server as node") {
		t.Error(err)
	}
}

func TestEachNodesErrorIsFound(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	cs := clientsOf(t, servers)
	l := newRedlock(t, []locker.Client{cs[0], deadNode(t), cs[2]})
	cs[2].Close()
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 300 * time.Millisecond})
	wantErr(t, err, "a", locker.ErrQuorum, locker.ErrUnavailable, redis.ErrClosed)
	wantNot(t, err, locker.ErrBusy)
	var node *locker.NodeError
	if !errors.As(err, &node) || node.Node != 1 || node.Addr != "127.0.0.1:1" {
		t.Errorf("node error %+v in %v", node, err)
	}
	if !strings.Contains(err.Error(), "1 of 3 nodes answered, 2 must agree") || !strings.Contains(err.Error(), "node 2 (") {
		t.Error(err)
	}
	nothingIsLeft(t, servers[0])
}

func TestAMinorityMayBeDown(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 5)
	l := redlockOn(t, servers)
	other := redlockOn(t, servers, locker.WithNodeTimeout(100*time.Millisecond))
	servers[1].Kill()
	servers[3].Kill()
	lease := acquire(t, l, locker.Rule{Key: "a", TTL: 2 * time.Second})
	_, err := other.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
	if e := wantErr(t, err, "a", locker.ErrBusy); e.RetryAfter <= 0 || e.RetryAfter > 2*time.Second {
		t.Errorf("retry after %v", e.RetryAfter)
	}
	first := lease.Expires()
	eventually(t, "it is renewed", func() bool { return lease.Expires().After(first) })
	servers[4].Kill()
	lost(t, lease, locker.ErrLost)
	_, err = other.Acquire(t.Context(), locker.Rule{Key: "b", Wait: 300 * time.Millisecond})
	wantErr(t, err, "b", locker.ErrQuorum)
	wantNot(t, err, locker.ErrBusy)
}

// A server that stands still costs nothing, and when it goes on, nothing of what it was told meanwhile stays.
func TestANodeThatStandsStillIsNotWaitedFor(t *testing.T) {
	servers := enrolled(t, 3)
	eventually(t, "no goroutine of another test is left", func() bool { return len(ourGoroutines()) == 0 })
	cs := clientsOf(t, servers)
	l, err := locker.NewRedlock(clients(cs), locker.WithNodeTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, l, locker.Rule{Key: "warm"}))
	servers[1].Pause()
	begun := time.Now()
	for i := range 200 {
		release(t, acquire(t, l, locker.Rule{Key: fmt.Sprint("k", i)}))
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("200 leases took %v", took)
	}
	if n := len(ourGoroutines()); n > 60 {
		t.Errorf("%d goroutines wait for a server that stands still", n)
	}
	servers[1].Resume()
	for _, s := range servers {
		nothingIsLeft(t, s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all goroutines have ended", func() bool { return len(ourGoroutines()) == 0 })
}

func TestCloseOfAQuorumIsBoundedByItsContext(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	l, err := locker.NewRedlock(clients(clientsOf(t, servers)))
	if err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, l, locker.Rule{Key: "warm"}))
	servers[2].Pause()
	release(t, acquire(t, l, locker.Rule{Key: "a"}))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begun := time.Now()
	if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v, although a node has not confirmed", err)
	}
	since(t, begun, 300*time.Millisecond, 3*time.Second)
	servers[2].Resume()
}

// Each of these answers is lost once; whatever becomes of the call, the key is excluded and free afterwards.
func TestLostAnswersOfOneNodeHarmNobody(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	proxy := chaos.NewProxy(t, servers[0].Addr())
	cs := clientsOf(t, servers)
	cs[0] = through(t, servers[0], proxy)
	l := newRedlock(t, clients(cs))
	loadScripts(t, cs[0])
	for _, op := range []locker.Op{locker.OpAcquire, locker.OpRelease, locker.OpRenew} {
		key := op.String()
		fault := proxy.LoseReplies(1, quorumCall(op, key))
		lease := acquire(t, l, locker.Rule{Key: key, TTL: time.Second})
		first := lease.Expires()
		eventually(t, "it is renewed", func() bool { return lease.Expires().After(first) })
		release(t, lease)
		fault.Await(t, 1)
		for _, s := range servers {
			nothingIsLeft(t, s)
		}
	}
}

func TestAnAcquireThatWasGivenUpLeavesNoVote(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	cs := clientsOf(t, servers)
	var faults []*chaos.Fault
	for i, s := range servers {
		proxy := chaos.NewProxy(t, s.Addr())
		cs[i] = through(t, s, proxy)
		loadScripts(t, cs[i])
		faults = append(faults, proxy.HoldRequests(1, quorumCall(locker.OpAcquire, "a")))
	}
	l := newRedlock(t, clients(cs))
	ctx, cancel := context.WithCancel(t.Context())
	p := asks(t, l, locker.Rule{Key: "a"})
	for _, f := range faults {
		f.Await(t, 1)
	}
	cancel()
	p.cancel()
	<-p.done
	if !errors.Is(p.err, ctx.Err()) {
		t.Fatal(p.err)
	}
	direct := clientsOf(t, servers)
	for _, c := range direct {
		eventually(t, "a tombstone stands", func() bool { return len(c.Keys(t.Context(), "latchkit:x:*").Val()) == 1 })
	}
	for i, f := range faults {
		before := scriptsRun(t, direct[i])
		f.Lift()
		eventually(t, "the acquire runs, late", func() bool { return scriptsRun(t, direct[i]) > before })
		if n := direct[i].Exists(t.Context(), "a").Val(); n != 0 {
			t.Errorf("node %d: the late acquire took the vote", i)
		}
	}
}

// Three processes that always ask at the same moment: each is served, one at a time, and fences grow.
func TestContendersSplitTheVotesAndAllAreServed(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	var inside atomic.Int32
	var last atomic.Uint64
	var all sync.WaitGroup
	const each = 40
	for range 3 {
		l := redlockOn(t, servers, locker.WithHandoffs(1))
		all.Go(func() {
			for range each {
				lease, err := l.Acquire(t.Context(), locker.Rule{Key: "wanted", Wait: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two hold the key")
				}
				if f := lease.Fence(); last.Swap(f) >= f {
					t.Errorf("fence %d does not grow", f)
				}
				inside.Add(-1)
				if err := lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for _, s := range servers {
		nothingIsLeft(t, s)
	}
}

// A waiter is told by any node that it is its turn: its next question by itself would come ten seconds later.
func TestAWaiterIsWokenByAnyNode(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	holder := redlockOn(t, servers)
	for i := range servers {
		key := fmt.Sprint("node ", i)
		waiter := redlockOn(t, servers)
		lease := acquire(t, holder, locker.Rule{Key: key})
		for _, s := range servers { // the last vote may come a little later
			c := s.Client(t)
			eventually(t, "every node has voted", func() bool { return c.Exists(t.Context(), key).Val() == 1 })
		}
		p := asks(t, waiter, locker.Rule{Key: key})
		for _, s := range servers {
			c := s.Client(t)
			eventually(t, "it waits at every node", func() bool { return inLine(t, c, key) == 1 })
		}
		for j, s := range servers {
			if j != i { // the others know of nobody who waits
				s.Client(t).Del(t.Context(), locker.QueueOf(key))
			}
		}
		begun := time.Now()
		release(t, lease)
		release(t, p.granted(0))
		if took := p.at.Sub(begun); took > 5*time.Second {
			t.Errorf("woken after %v: not by the one node that could", took)
		}
	}
}

// Votes that differ are brought together in a second round trip, and the fence is above all that any node has given.
func TestNodesThatDisagreeAboutTheFenceAgreeInASecondRound(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	cs := clientsOf(t, servers)
	recorder := newRounds()
	l := newRedlock(t, clients(cs), locker.WithObserver(recorder))
	lease := acquire(t, l, locker.Rule{Key: "a"})
	release(t, lease)
	if recorder.last() != 1 {
		t.Errorf("%d round trips, want 1", recorder.last())
	}
	ahead := lease.Fence() + 60_000_000
	for i, c := range cs[:2] { // as if they had granted to others what the third was not there for
		if err := c.Set(t.Context(), locker.CounterOf("a"), ahead+uint64(i), 0).Err(); err != nil { //nolint:gosec // a few
			t.Fatal(err)
		}
	}
	before := lease.Fence()
	seconds := 0
	for range 20 {
		lease = acquire(t, l, locker.Rule{Key: "a"})
		if lease.Fence() <= before {
			t.Fatalf("fence %d after %d", lease.Fence(), before)
		}
		before = lease.Fence()
		if recorder.last() > 1 {
			seconds++
			shown := 0
			for _, c := range cs {
				if strings.Contains(c.Get(t.Context(), "a").Val(), fmt.Sprintf(":%d:", before)) {
					shown++
				}
			}
			if shown < 2 {
				t.Errorf("the fence %d lies on %d nodes", before, shown)
			}
		}
		release(t, lease)
	}
	if seconds == 0 || before <= ahead {
		t.Errorf("%d second rounds; fence %d, a node was at %d", seconds, before, ahead)
	}
}

func TestASingleServersClockIsNotBelievedAgainstTheOthers(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	cs := clientsOf(t, servers)
	wrong := &wrongClock{Client: cs[0]}
	wrong.by.Store(int64(time.Hour))
	l := newRedlock(t, []locker.Client{wrong, cs[1], cs[2]}, locker.WithNodeTimeout(100*time.Millisecond))
	release(t, acquire(t, l, locker.Rule{Key: "warm", Wait: 5 * time.Second}))
	lease := acquire(t, l, locker.Rule{Key: "a", Wait: 5 * time.Second})
	release(t, lease)
	if wrong.changed.Load() == 0 {
		t.Fatal("positive control: no answer had another time")
	}
	servers[2].Kill() // now the vote of the first would be needed
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "b", Wait: 300 * time.Millisecond})
	wantErr(t, err, "b", locker.ErrQuorum)
	if !strings.Contains(err.Error(), "its clock is 1h0m") && !strings.Contains(err.Error(), "its clock is 59m") {
		t.Error(err)
	}
	for i := range 2 {
		nothingIsLeft(t, servers[i])
	}
}

// wrongClock shows the times of a server as if its clock were set wrong.
type wrongClock struct {
	*redis.Client
	by      atomic.Int64 // in ns; 0: not
	changed atomic.Int32
}

func (w *wrongClock) Process(ctx context.Context, cmd redis.Cmder) error {
	err := w.Client.Process(ctx, cmd)
	if answer, ok := cmd.(interface {
		Val() string
		SetVal(string)
	}); ok && err == nil {
		words := strings.SplitN(answer.Val(), " ", 3)
		for i, word := range words[:min(len(words), 2)] { // the time is the first word or the second
			if at, err := strconv.ParseInt(word, 10, 64); err == nil && at > 1e15 && at < 1e17 && w.by.Load() != 0 {
				words[i] = strconv.FormatInt(at+time.Duration(w.by.Load()).Microseconds(), 10)
				answer.SetVal(strings.Join(words, " "))
				w.changed.Add(1)
				break
			}
		}
	}
	return err
}

// rounds remembers how many round trips acquires took.
type rounds struct {
	mu  sync.Mutex
	all []int
}

func newRounds() *rounds { return new(rounds) }

func (r *rounds) Begin(ctx context.Context, op locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	return ctx, func(o locker.Outcome) {
		if op == locker.OpAcquire {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.all = append(r.all, o.Rounds)
		}
	}
}

func (r *rounds) last() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[len(r.all)-1]
}

// What a server that is down was not told, it has forgotten, or will find run out: Close does not wait for it.
func TestCloseOfAQuorumDoesNotWaitForAServerThatIsDown(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	l, err := locker.NewRedlock(clients(clientsOf(t, servers)))
	if err != nil {
		t.Fatal(err)
	}
	lease := acquire(t, l, locker.Rule{Key: "a"})
	c := servers[0].Client(t)
	eventually(t, "it has voted", func() bool { return c.Exists(t.Context(), "a").Val() == 1 })
	servers[0].Kill()
	release(t, lease)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.Error(err)
	}
}

// One call that hangs says little of a server; of all servers it must not be believed.
func TestACallThatHangsOnEachNodeHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	cs := clientsOf(t, servers)
	var faults []*chaos.Fault
	for i, s := range servers {
		proxy := chaos.NewProxy(t, s.Addr())
		cs[i] = s.Client(t, func(o *redis.Options) { o.Addr, o.ReadTimeout = proxy.Addr(), time.Minute })
		loadScripts(t, cs[i])
		faults = append(faults, proxy.SwallowReplies(1, quorumCall(locker.OpAcquire, "hangs")))
	}
	l := newRedlock(t, clients(cs), locker.WithNodeTimeout(time.Second))
	p := asks(t, l, locker.Rule{Key: "hangs", Wait: 10 * time.Second})
	for _, f := range faults {
		f.Await(t, 1)
	}
	<-time.After(1500 * time.Millisecond) // until they are late
	for i := range 20 {
		lease, err := l.Acquire(t.Context(), locker.Rule{Key: fmt.Sprint("k", i), Wait: locker.NoWait})
		if err != nil {
			t.Fatal(err)
		}
		release(t, lease)
	}
	p.cancel()
	<-p.done
	for i := range cs {
		cs[i].Close() // and with it what hangs
	}
}
