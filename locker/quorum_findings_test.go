package locker_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// What a review of quorums has found on real servers, each as it was found.

var brief = []locker.QuorumOption{locker.WithTTL(500 * time.Millisecond), locker.WithMaxTTL(500 * time.Millisecond), locker.WithMaxSkew(50 * time.Millisecond)}

// with is a list of nodes of which some are others'.
func with(cs []*redis.Client, other map[int]locker.Client) []locker.Client {
	all := clients(cs)
	for i, c := range other {
		all[i] = c
	}
	return all
}

// The process that brings a node back does not know of the longer leases of another one: the nodes
// do.
func TestQuorumQ1AWaitIsAsLongAsAnybodysLongestLease(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3, brief...)
	first := redlockOn(t, servers, brief...)
	release(t, acquire(t, first, locker.Rule{Key: "warm"}))
	cs := clientsOf(t, servers)
	long := []locker.QuorumOption{locker.WithMaxTTL(20 * time.Second), locker.WithTTL(20 * time.Second), locker.WithMaxSkew(50 * time.Millisecond), locker.WithNodeTimeout(500 * time.Millisecond)}
	lease := acquire(t, newRedlock(t, with(cs, map[int]locker.Client{0: deadNode(t)}), long...), locker.Rule{Key: "x"})
	cs[2].FlushAll(t.Context())
	release(t, acquire(t, first, locker.Rule{Key: "y"})) // meets the node that forgot
	time.Sleep(800 * time.Millisecond)                   //nolint:forbidigo // the first process's own wait would be 0.6 s
	_, err := first.Acquire(t.Context(), locker.Rule{Key: "x", Wait: locker.NoWait})
	if err == nil && lease.Context().Err() == nil {
		t.Errorf("two hold the key: the first has %v left", time.Until(lease.Expires()))
	}
}

// Nodes come back although nobody locks anything when their wait is over, and although no process
// lives for as long as it takes.
func TestQuorumQ2NodesComeBackByThemselves(t *testing.T) {
	t.Parallel()
	t.Run("a process that is idle", func(t *testing.T) {
		t.Parallel()
		servers := startNodes(t, 3)
		l := redlockOn(t, servers, brief...)
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
		wantErr(t, err, "a", locker.ErrQuorum)
		var e *locker.Error
		if !errors.As(err, &e) || e.RetryAfter < 300*time.Millisecond || e.RetryAfter > 700*time.Millisecond {
			t.Errorf("%v: retry after what is left of the wait", err)
		}
		eventually(t, "all have become members", func() bool {
			for _, s := range servers {
				if !strings.Contains(s.Client(t).Get(t.Context(), "latchkit:node").Val(), "/v/") {
					return false
				}
			}
			return true
		})
		release(t, acquire(t, l, locker.Rule{Key: "a", Wait: locker.NoWait}))
	})
	t.Run("processes that live for a moment", func(t *testing.T) {
		t.Parallel()
		servers := startNodes(t, 3)
		for try := range 20 {
			l, err := locker.NewRedlock(clients(clientsOf(t, servers)), brief...)
			if err != nil {
				t.Fatal(err)
			}
			lease, err := l.Acquire(t.Context(), locker.Rule{Key: "cron", Wait: locker.NoWait})
			if err == nil {
				release(t, lease)
			}
			_ = l.Close(t.Context())
			if err == nil {
				t.Logf("the job ran at try %d", try)
				return
			}
			time.Sleep(300 * time.Millisecond) //nolint:forbidigo // until the condition above
		}
		t.Error("the job never ran")
	})
}

// EnrollRedlock and a Locker say the same of the same nodes, and a Locker notices an enrolment at
// once.
func TestQuorumQ2AnEnrolmentIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	servers := startNodes(t, 3)
	l := redlockOn(t, servers, shortQuarantine...)
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
	wantErr(t, err, "a", locker.ErrQuorum)
	if err := locker.EnrollRedlock(t.Context(), clients(clientsOf(t, servers)), shortQuarantine...); err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, l, locker.Rule{Key: "a", Wait: locker.NoWait}))

	servers[1].Client(t).FlushAll(t.Context())
	err = locker.EnrollRedlock(t.Context(), clients(clientsOf(t, servers)), shortQuarantine...)
	nodes, _ := l.Nodes(t.Context())
	if err == nil || !strings.Contains(err.Error(), "does not vote for another") || nodes[1].State != locker.NodeJoins || nodes[1].Left < 4*time.Second {
		t.Errorf("EnrollRedlock: %v; the Locker: %+v", err, nodes)
	}
}

// Rolling restarts, with data and without, of more nodes than may be lost at once and faster than
// they come back.
func TestQuorumQ2RollingRestartsEndInNoOutage(t *testing.T) {
	t.Parallel()
	for _, data := range []bool{false, true} {
		t.Run(fmt.Sprint("with data: ", data), func(t *testing.T) {
			t.Parallel()
			var servers []*redistest.Server
			for range 3 {
				args := []string(nil)
				if data {
					args = []string{"--appendonly", "yes", "--appendfsync", "always"}
				}
				servers = append(servers, redistest.Start(t, args...))
			}
			opts := append(slices.Clone(brief), locker.WithNodeTimeout(500*time.Millisecond))
			if err := locker.EnrollRedlock(t.Context(), clients(clientsOf(t, servers)), opts...); err != nil {
				t.Fatal(err)
			}
			l := redlockOn(t, servers, opts...)
			release(t, acquire(t, l, locker.Rule{Key: "a"}))
			for _, patient := range []bool{true, false} {
				for i, s := range servers {
					s.Restart()
					if patient {
						release(t, acquire(t, l, locker.Rule{Key: "a", Wait: 5 * time.Second})) // one node is out, and nobody waits for it
						eventually(t, fmt.Sprintf("all vote after the restart of node %d", i), func() bool { return allVote(t, l) })
					}
				}
			}
			eventually(t, "all vote after restarts without a pause", func() bool { return allVote(t, l) })
			release(t, acquire(t, l, locker.Rule{Key: "a", Wait: locker.NoWait}))
		})
	}
}

// A node's clock that steps ahead drops leases too early, and its marker does not show that when
// the clock is right again. A client that has seen the step makes the node wait.
func TestQuorumQ3AClockThatWasSeenToStepIsNotBelievedAtOnce(t *testing.T) {
	t.Parallel()
	opts := []locker.QuorumOption{locker.WithTTL(3 * time.Second), locker.WithMaxTTL(3 * time.Second), locker.WithNodeTimeout(500 * time.Millisecond), locker.WithMaxSkew(100 * time.Millisecond)}
	servers := enrolled(t, 3, opts...)
	cs := clientsOf(t, servers)
	clock := &wrongClock{Client: cs[0]}
	other := newRedlock(t, with(cs, map[int]locker.Client{0: clock}), opts...)
	release(t, acquire(t, other, locker.Rule{Key: "warm"}))
	lease := acquire(t, newRedlock(t, with(cs, map[int]locker.Client{2: deadNode(t)}), opts...), locker.Rule{Key: "x"})
	clock.by.Store(int64(time.Minute))
	cs[0].Del(t.Context(), "x") // which is what the step does to a lease of 3 s
	for range 3 {
		if l, err := other.Acquire(t.Context(), locker.Rule{Key: "y", Wait: locker.NoWait}); err == nil {
			release(t, l)
		}
	}
	clock.by.Store(0)
	if _, err := other.Acquire(t.Context(), locker.Rule{Key: "x", Wait: locker.NoWait}); err == nil && lease.Context().Err() == nil {
		t.Errorf("two hold the key: the first has %v left", time.Until(lease.Expires()))
	}
	eventually(t, "the node votes again", func() bool { return allVote(t, other) })
}

// A clock may wander from one end of what WithMaxSkew allows to the other between a grant and the
// next request.
func TestQuorumQ4AStepWithinTheSkewEndsNoLease(t *testing.T) {
	t.Parallel()
	const ttl, skew = time.Second, 500 * time.Millisecond
	opts := []locker.QuorumOption{locker.WithTTL(ttl), locker.WithoutRenewal(), locker.WithNodeTimeout(500 * time.Millisecond)}
	servers := enrolled(t, 3, opts...)
	cs := clientsOf(t, servers)
	other := redlockOn(t, servers, opts...)
	release(t, acquire(t, other, locker.Rule{Key: "warm"}))
	lease := acquire(t, newRedlock(t, with(cs, map[int]locker.Client{2: deadNode(t)}), opts...), locker.Rule{Key: "x"})
	left := cs[0].PTTL(t.Context(), "x").Val() - 2*skew + 20*time.Millisecond // as if the clock were set ahead
	cs[0].PExpire(t.Context(), "x", left)
	for lease.Context().Err() == nil {
		if next, err := other.Acquire(t.Context(), locker.Rule{Key: "x", Wait: locker.NoWait}); err == nil {
			if left := time.Until(lease.Expires()); lease.Context().Err() == nil && left > 0 {
				t.Errorf("two hold the key: the first has %v left", left)
			}
			release(t, next)
			return
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // until the condition above
	}
}

// Break of a phase of readers hits the phase that was named, and not one that has begun since.
func TestQuorumQ6BreakHitsThePhaseThatIsNamed(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	l := libraryOn(t, servers)
	gate, arrived := make(chan struct{}), new(sync.WaitGroup)
	arrived.Add(3)
	var late []locker.Client
	for _, c := range clientsOf(t, servers) {
		late = append(late, &heldBack{Client: c, gate: gate, arrived: arrived, what: locker.ScriptSHA("quorum_release")})
	}
	operator, err := locker.NewReadWrite(late)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = operator.Close(context.Background()) })
	one := acquire(t, l, locker.Rule{Key: "doc", Mode: locker.Shared})
	everywhere(t, servers, "doc")
	broken := make(chan error, 1)
	go func() { broken <- operator.Revoke(context.Background(), "doc", one.Fence(), "stuck") }()
	arrived.Wait()
	release(t, one)
	eventually(t, "the phase is over everywhere", func() bool {
		return !slices.ContainsFunc(servers, func(s *redistest.Server) bool { return s.Client(t).Exists(t.Context(), "doc").Val() == 1 })
	})
	two := acquire(t, l, locker.Rule{Key: "doc", Mode: locker.Shared, TTL: 20 * time.Second})
	everywhere(t, servers, "doc")
	close(gate)
	if err := <-broken; !errors.Is(err, locker.ErrGone) && !errors.Is(err, locker.ErrUnavailable) {
		t.Errorf("Break of a phase that is over: %v", err)
	}
	if _, err := libraryOn(t, servers).Acquire(t.Context(), locker.Rule{Key: "doc", Wait: locker.NoWait}); err == nil && two.Context().Err() == nil {
		t.Errorf("a writer beside a reader who has %v left", time.Until(two.Expires()))
	}
}

func everywhere(t *testing.T, servers []*redistest.Server, key string) {
	t.Helper()
	eventually(t, "all nodes have it", func() bool {
		return !slices.ContainsFunc(servers, func(s *redistest.Server) bool { return s.Client(t).Exists(t.Context(), key).Val() == 0 })
	})
}

// heldBack holds up the calls of one script until the gate is open.
type heldBack struct {
	*redis.Client
	what    string
	gate    chan struct{}
	arrived *sync.WaitGroup
	once    sync.Once
}

func (h *heldBack) Process(ctx context.Context, cmd redis.Cmder) error {
	if args := cmd.Args(); len(args) > 1 && args[1] == h.what {
		h.once.Do(h.arrived.Done)
		<-h.gate
	}
	return h.Client.Process(ctx, cmd)
}

// An address that is one node leads to another node's server later.
func TestQuorumQ7AnAddressThatMovesVotesForNobodyElse(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	cs := clientsOf(t, servers)
	var target atomic.Pointer[string]
	a, b := servers[0].Addr(), servers[1].Addr()
	target.Store(&a)
	moving := redis.NewClient(&redis.Options{
		Addr: "redis-a:6379", ConnMaxLifetime: 50 * time.Millisecond,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, *target.Load())
		},
	})
	t.Cleanup(func() { moving.Close() })
	one := newRedlock(t, with(cs, map[int]locker.Client{0: moving}), locker.WithNodeTimeout(500*time.Millisecond))
	release(t, acquire(t, one, locker.Rule{Key: "warm"}))
	target.Store(&b)
	time.Sleep(100 * time.Millisecond) //nolint:forbidigo // the acquire is under way
	lease := acquire(t, newRedlock(t, with(cs, map[int]locker.Client{1: deadNode(t)})), locker.Rule{Key: "x"})
	_, err := one.Acquire(t.Context(), locker.Rule{Key: "x", Wait: locker.NoWait})
	if err == nil && lease.Context().Err() == nil {
		t.Error("two hold the key: one server has voted for two nodes")
	}
}

// Two lists of nodes refuse each other, and the error names both.
func TestQuorumQ8TwoListsOfNodesRefuseEachOther(t *testing.T) {
	t.Parallel()
	servers := startNodes(t, 4)
	cs := clientsOf(t, servers)
	old, other := []int{0, 1, 2}, []int{0, 1, 3}
	list := func(which []int) (all []locker.Client) {
		for _, i := range which {
			all = append(all, cs[i])
		}
		return all
	}
	if err := locker.EnrollRedlock(t.Context(), list(old)); err != nil {
		t.Fatal(err)
	}
	bothNamed := func(err error) {
		t.Helper()
		if !errors.Is(err, locker.ErrQuorum) {
			t.Fatalf("%v, want ErrQuorum", err)
		}
		for _, s := range servers {
			if !strings.Contains(err.Error(), s.Addr()) {
				t.Errorf("%v: does not name %s", err, s.Addr())
			}
		}
	}
	bothNamed(locker.EnrollRedlock(t.Context(), list(other)))
	lease := acquire(t, newRedlock(t, []locker.Client{cs[0], deadNode(t), cs[2]}, locker.WithNodeTimeout(500*time.Millisecond)), locker.Rule{Key: "x"})
	_, err := newRedlock(t, []locker.Client{deadNode(t), cs[1], cs[3]}, locker.WithNodeTimeout(500*time.Millisecond)).Acquire(t.Context(), locker.Rule{Key: "x", Wait: locker.NoWait})
	if err == nil && lease.Context().Err() == nil {
		t.Fatal("two hold the key")
	}
	watched := newWarnings()
	second := newRedlock(t, list(other), locker.WithObserver(watched))
	_, err = second.Acquire(t.Context(), locker.Rule{Key: "x", Wait: locker.NoWait})
	if err == nil {
		t.Fatal("two hold the key")
	}
	eventually(t, "a warning says so", func() bool {
		return slices.ContainsFunc(watched.seen(), func(w locker.Warning) bool {
			return w.Code == "node-out" && strings.Contains(w.Text, "two lists of nodes")
		})
	})
	eventually(t, "Nodes says so", func() bool {
		nodes, err := second.Nodes(t.Context())
		return err == nil && nodes[2].State == locker.NodeStranger
	})
	longer := startNodes(t, 1)
	_, err = newRedlock(t, append(list([]int{0, 1, 2, 3}), longer[0].Client(t))).Acquire(t.Context(), locker.Rule{Key: "z", Wait: locker.NoWait})
	bothNamed(err)
}

// One node is replaced while locks are taken: no two holders, all processes lock on, and the new
// node votes in the end.
func TestQuorumQ8ANodeIsReplacedWhileLocksAreTaken(t *testing.T) {
	t.Parallel()
	opts := append(slices.Clone(brief), locker.WithNodeTimeout(500*time.Millisecond))
	servers := startNodes(t, 4)
	cs := clientsOf(t, servers)
	if err := locker.EnrollRedlock(t.Context(), clients(cs[:3]), opts...); err != nil {
		t.Fatal(err)
	}
	list := []locker.Client{cs[0], cs[1], cs[3]}
	before, after := newRedlock(t, clients(cs[:3]), opts...), newRedlock(t, list, opts...)
	var holders atomic.Int32
	end := make(chan struct{})
	var working sync.WaitGroup
	grants := make([]atomic.Int32, 2)
	for i, l := range []*locker.Engine{before, after} {
		working.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				lease, err := l.Acquire(context.Background(), locker.Rule{Key: "x", Wait: 10 * time.Second})
				if errors.Is(err, locker.ErrClosed) {
					return
				}
				if errors.Is(err, locker.ErrUnavailable) { // the machine is busy; that both lock is shown below
					continue
				}
				if err != nil {
					t.Errorf("list %d: %v", i, err)
					continue
				}
				if holders.Add(1) > 1 && lease.Context().Err() == nil {
					t.Error("two hold the key")
				}
				grants[i].Add(1)
				time.Sleep(time.Millisecond) //nolint:forbidigo // the work
				holders.Add(-1)
				_ = lease.Release(context.Background())
			}
		})
	}
	eventually(t, "both lock", func() bool { return grants[0].Load() > 5 && grants[1].Load() > 5 })
	votesIn, err := locker.ReplaceNode(t.Context(), list, opts...)
	if err != nil || votesIn <= 0 || votesIn > time.Second {
		t.Errorf("ReplaceNode: %v, %v", votesIn, err)
	}
	eventually(t, "the new node votes", func() bool { return allVote(t, after) })
	was := grants[0].Load()
	eventually(t, "both lock on", func() bool { return grants[0].Load() > was+5 && grants[1].Load() > 10 })
	close(end)
	working.Wait()
	eventually(t, "the old list knows of the replacement", func() bool {
		nodes, err := before.Nodes(t.Context()) // a node may be slow to answer
		return err == nil && nodes[2].State == locker.NodeReplaced
	})
	servers[0].Kill() // the new node's vote is needed now
	release(t, acquire(t, after, locker.Rule{Key: "y", Wait: 5 * time.Second}))
}

// The mark of a Complete that was refused, on one node of three, says nothing.
func TestQuorumQ9WorkIsDoneWhenMostNodesSaySo(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	cs := clientsOf(t, servers)
	rule := locker.Rule{Key: "job", Once: time.Minute, Wait: locker.NoWait}
	cs[0].Set(t.Context(), locker.DoneMark("job"), "1", time.Minute) // as a Complete leaves it that is revoked at the two others
	working := acquire(t, redlockOn(t, servers), rule)
	asks := redlockOn(t, servers)
	for range 50 {
		if _, err := asks.Acquire(t.Context(), rule); err == nil || errors.Is(err, locker.ErrDone) {
			t.Fatalf("%v, while another one works", err)
		}
	}
	release(t, working) // it has failed
	if err := acquire(t, asks, rule).Complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := asks.Acquire(t.Context(), rule)
	wantErr(t, err, "job", locker.ErrDone)
}

// While a Downgrade is on its way, nobody comes in who counts on the lease being Exclusive.
func TestQuorumQ5NobodyEntersExclusiveBesideADowngrade(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	gate, arrived := make(chan struct{}), new(sync.WaitGroup)
	arrived.Add(1)
	slow := &heldBack{Client: server.Client(t), gate: gate, arrived: arrived, what: locker.ScriptSHA("rw_downgrade")}
	r := locker.NewReentrant(newReadWrite(t, slow))
	outer := acquire(t, r, locker.Rule{Key: "doc"})
	downgraded := make(chan error, 1)
	go func() { downgraded <- outer.Downgrade(context.Background()) }()
	arrived.Wait()
	nested, err := r.Acquire(outer.Context(), locker.Rule{Key: "doc"})
	wantErr(t, err, "doc", locker.ErrUnsupported)
	close(gate)
	if err := <-downgraded; err != nil {
		t.Fatal(err)
	}
	reader := acquire(t, newReadWrite(t, server.Client(t)), locker.Rule{Key: "doc", Mode: locker.Shared, Wait: locker.NoWait})
	if nested != nil && nested.Context().Err() == nil && reader.Context().Err() == nil {
		t.Error("a writer beside a reader")
	}
	part := acquire(t, r, locker.Rule{Key: "other"})
	inside, err := r.Acquire(part.Context(), locker.Rule{Key: "other"})
	if err != nil {
		t.Fatal(err)
	}
	if err := part.Downgrade(t.Context()); !errors.Is(err, locker.ErrUnsupported) {
		t.Errorf("Downgrade beside a nested hold: %v", err)
	}
	release(t, inside)
	release(t, part)
	release(t, reader)
	release(t, outer)
}

// What RunAll gives back because it could not have all keys is not kept for AtLeast: nothing was
// done.
func TestQuorumQ10ARunAllThatIsRolledBackKeepsNothing(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) *locker.Engine{
		"one server": func(t *testing.T) *locker.Engine {
			return newSingle(t, redistest.Shared(t).Client(t), locker.WithPrefix(t.Name()))
		},
		"a quorum": func(t *testing.T) *locker.Engine { return redlockOn(t, enrolled(t, 3)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := open(t)
			held := acquire(t, l, locker.Rule{Key: "b"})
			rules := []locker.Rule{{Key: "a", AtLeast: 30 * time.Second, Wait: time.Second}, {Key: "b", AtLeast: 30 * time.Second, Wait: time.Second}}
			ran := false
			work := func(context.Context) error { ran = true; return nil }
			if err := locker.RunAll(t.Context(), l, rules, work); !errors.Is(err, locker.ErrBusy) {
				t.Fatal(err)
			}
			release(t, held)
			if err := locker.RunAll(t.Context(), l, rules, work); err != nil || !ran {
				t.Errorf("all keys are free: %v", err)
			}
		})
	}
}

// NewPolling's release whose answer is lost is no loss, with the client that its documentation asks
// for.
func TestQuorumQ13ALostAnswerToAPollingReleaseIsNoLoss(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := chaos.NewProxy(t, server.Addr())
	l := newPolling(t, server.Client(t, func(o *redis.Options) { o.Addr, o.MaxRetries = proxy.Addr(), -1 }))
	release(t, acquire(t, l, locker.Rule{Key: "warm"}))
	lease := acquire(t, l, locker.Rule{Key: "a"})
	lost := proxy.LoseReplies(1, chaos.Command("EVALSHA"))
	if err := lease.Release(t.Context()); err != nil || lost.Hits() != 1 {
		t.Errorf("Release: %v, with %d answers lost", err, lost.Hits())
	}
}

// A node that is out for good is warned of, and Nodes says why.
func TestQuorumQ11ANodeThatIsOutIsVisible(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3, brief...)
	watched := newWarnings()
	l := redlockOn(t, servers, append(slices.Clone(brief), locker.WithObserver(watched), locker.WithNodeTimeout(500*time.Millisecond))...)
	release(t, acquire(t, l, locker.Rule{Key: "a"}))
	servers[1].Pause()
	has := func(code string) func() bool {
		return func() bool {
			if lease, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait}); err == nil {
				release(t, lease)
			}
			return slices.ContainsFunc(watched.seen(), func(w locker.Warning) bool { return w.Code == code && strings.Contains(w.Text, "node 1 (") })
		}
	}
	eventually(t, "it is warned of", has("node-out"))
	nodes, err := l.Nodes(t.Context())
	if err != nil || nodes[1].State != locker.NodeUnreachable || nodes[1].Reason == "" || nodes[0].State != locker.NodeVotes || nodes[0].Addr != servers[0].Addr() {
		t.Errorf("%+v, %v", nodes, err)
	}
	servers[1].Resume()
	eventually(t, "its return is reported", has("node-returned"))
}

// A server that may evict does not vote, whatever its statistics say.
func TestQuorumQ12AServerThatMayEvictDoesNotVote(t *testing.T) {
	t.Parallel()
	servers := startNodes(t, 3)
	c := servers[2].Client(t)
	c.ConfigSet(t.Context(), "maxmemory", "64mb")
	c.ConfigSet(t.Context(), "maxmemory-policy", "volatile-lru")
	if err := locker.EnrollRedlock(t.Context(), clients(clientsOf(t, servers)), brief...); err == nil || !strings.Contains(err.Error(), "noeviction") {
		t.Fatalf("EnrollRedlock: %v", err)
	}
	c.ConfigSet(t.Context(), "maxmemory-policy", "noeviction")
	if err := locker.EnrollRedlock(t.Context(), clients(clientsOf(t, servers)), brief...); err != nil {
		t.Fatal(err)
	}
	l := redlockOn(t, servers, brief...)
	release(t, acquire(t, l, locker.Rule{Key: "a"}))
	c.ConfigSet(t.Context(), "maxmemory-policy", "volatile-lru")
	eventually(t, "the change is noticed", func() bool {
		nodes, err := l.Nodes(t.Context())
		return err == nil && nodes[2].State == locker.NodeEvicts
	})
}

// A Redlock and a NewReadWrite on the same nodes notify each other.
func TestQuorumQ14ARedlockIsNotifiedByAReadWrite(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	rw, l := libraryOn(t, servers), redlockOn(t, servers)
	var took time.Duration
	for i := range 5 {
		key := fmt.Sprint("x", i)
		lease := acquire(t, rw, locker.Rule{Key: key})
		got := make(chan *locker.Lease, 1)
		go func() {
			w, err := l.Acquire(context.Background(), locker.Rule{Key: key})
			if err != nil {
				t.Error(err)
			}
			got <- w
		}()
		eventually(t, "it waits", func() bool {
			return slices.ContainsFunc(servers, func(s *redistest.Server) bool {
				return s.Client(t).ZCard(t.Context(), locker.QueueOf(key)).Val() > 0
			})
		})
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // the acquire is under way
		began := time.Now()
		release(t, lease)
		w := <-got
		took += time.Since(began)
		release(t, w)
	}
	if took > 3*time.Second { // without a message each takes 0.7 s
		t.Errorf("five hand-overs took %v", took)
	}
}

// A wait that ends while the client still dials names the nodes.
func TestAWaitThatEndsWhileNodesAreDialledNamesThem(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	l := redlockOn(t, servers)
	release(t, acquire(t, l, locker.Rule{Key: "a"}))
	servers[1].Kill()
	servers[2].Kill()
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: time.Second})
	wantErr(t, err, "a", locker.ErrQuorum)
	for _, s := range servers[1:] {
		if !strings.Contains(err.Error(), s.Addr()) {
			t.Errorf("%v: does not name %s", err, s.Addr())
		}
	}
}

// libraryOn opens a Locker with readers on servers.
func libraryOn(t *testing.T, servers []*redistest.Server) *locker.Engine {
	t.Helper()
	l, err := locker.NewReadWrite(clients(clientsOf(t, servers)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

// warnings is an Observer that keeps warnings.
type warnings struct {
	mu  sync.Mutex
	all []locker.Warning
}

func newWarnings() *warnings { return new(warnings) }

func (w *warnings) Begin(ctx context.Context, _ locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	return ctx, nil
}

func (w *warnings) Warn(x locker.Warning) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, x)
}

func (w *warnings) seen() []locker.Warning {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.all)
}
