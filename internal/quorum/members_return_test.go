package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// Each of these tests shows a defect that a review of quorums has found on real servers.

var brief = []locker.QuorumOption{locker.WithTTL(500 * time.Millisecond), locker.WithMaxTTL(500 * time.Millisecond), locker.WithMaxSkew(50 * time.Millisecond)}

// replaceNodes returns the clients cs as a list of nodes, in which the client at each index of
// replacements is replaced.
func replaceNodes(cs []*redis.Client, replacements map[int]locker.Client) []locker.Client {
	all := clients(cs)
	for i, c := range replacements {
		all[i] = c
	}
	return all
}

// A process lets a node vote again. The process does not know the longer leases of another
// process, but the nodes know them.
func TestAWaitIsAsLongAsAnybodysLongestLease(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3, brief...)
	first := redlockOn(t, servers, brief...)
	release(t, acquire(t, first, locker.Rule{Key: "warm"}))
	cs := clientsOf(t, servers)
	long := []locker.QuorumOption{locker.WithMaxTTL(20 * time.Second), locker.WithTTL(20 * time.Second), locker.WithMaxSkew(50 * time.Millisecond), locker.WithNodeTimeout(500 * time.Millisecond)}
	lease := acquire(t, newRedlock(t, replaceNodes(cs, map[int]locker.Client{0: deadNode(t)}), long...), locker.Rule{Key: "x"})
	cs[2].FlushAll(t.Context())
	release(t, acquire(t, first, locker.Rule{Key: "y"})) // this process detects the node that forgot
	time.Sleep(800 * time.Millisecond)                   //nolint:forbidigo // the first process's own wait would be 0.6 s
	_, err := first.Acquire(t.Context(), locker.Rule{Key: "x", Wait: locker.NoWait})
	if err == nil && lease.Context().Err() == nil {
		t.Errorf("two hold the key: the first has %v left", time.Until(lease.Expires()))
	}
}

// A wait is as long as the longest lease that a process can have got. So the longest TTL of a
// process counts when the process asks for its first lock, and before it gets this lock. A process
// that only looks at the nodes does not make the waits longer, and neither does an operator who
// gives no TTL.
func TestQuorumOnlyWhoAsksForLocksLengthensTheWait(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3, brief...)
	cs := clientsOf(t, servers)
	longest := func() (all []string) {
		for _, s := range servers {
			all = append(all, strings.Split(s.Client(t).Get(t.Context(), "latchkit:node").Val(), "/")[4])
		}
		return all
	}
	before := longest()
	long := redlockOn(t, servers, locker.WithTTL(time.Second), locker.WithMaxTTL(20*time.Second), locker.WithMaxSkew(50*time.Millisecond))
	eventually(t, "it sees that all vote", func() bool { return allVote(t, long) })
	if err := locker.EnrollRedlock(t.Context(), clients(cs)); err != nil {
		t.Error(err)
	}
	if _, err := locker.ReplaceNode(t.Context(), clients(cs)); err != nil {
		t.Error(err)
	}
	if got := longest(); !slices.Equal(got, before) {
		t.Errorf("after looks, the longest TTL is %q, want %q", got, before)
	}
	lease := acquire(t, long, locker.Rule{Key: "x", Wait: locker.NoWait})
	got := longest()
	if n := len(slices.DeleteFunc(got, func(ms string) bool { return ms != "20000" })); n < 2 {
		t.Errorf("%d nodes know of the longest TTL of a process that holds a lease", n)
	}
	release(t, lease)
	if err := locker.EnrollRedlock(t.Context(), clients(cs), locker.WithMaxTTL(time.Hour)); err != nil {
		t.Error(err)
	}
	if got := longest(); !slices.Equal(got, []string{"3600000", "3600000", "3600000"}) {
		t.Errorf("after an operator has given an hour, the longest TTL is %q", got)
	}
}

// Markers have whole milliseconds, and a longest TTL with a fraction is no obstacle.
func TestALongestTTLNeedsNoWholeMilliseconds(t *testing.T) {
	t.Parallel()
	odd := 10 * time.Second / 3
	e := redlockOn(t, enrolled(t, 3, brief...), locker.WithTTL(odd), locker.WithMaxTTL(odd), locker.WithMaxSkew(50*time.Millisecond))
	release(t, acquire(t, e, locker.Rule{Key: "x", Wait: 5 * time.Second}))
}

// When the wait of the nodes is over, they vote again, even if no process takes a lock at that
// time, and even if no process has lived for the whole wait.
func TestNodesComeBackByThemselves(t *testing.T) {
	t.Parallel()
	t.Run("a process that is idle", func(t *testing.T) {
		t.Parallel()
		servers := startNodes(t, 3)
		l := redlockOn(t, servers, brief...)
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 100 * time.Millisecond})
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
			time.Sleep(300 * time.Millisecond) //nolint:forbidigo // the pause between two checks
		}
		t.Error("the job never ran")
	})
}

// EnrollRedlock and a Locker report the same states of nodes, and a Locker notices an enrolment at
// once.
func TestAnEnrolmentIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	servers := startNodes(t, 3)
	l := redlockOn(t, servers, shortQuarantine...)
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
	wantErr(t, err, "a", locker.ErrQuorum)
	enroll(t, clients(clientsOf(t, servers)), shortQuarantine...)
	release(t, acquire(t, l, locker.Rule{Key: "a", Wait: locker.NoWait}))

	servers[1].Client(t).FlushAll(t.Context())
	err = locker.EnrollRedlock(t.Context(), clients(clientsOf(t, servers)), shortQuarantine...)
	nodes, _ := l.Nodes(t.Context())
	if err == nil || !strings.Contains(err.Error(), "does not vote for another") || nodes[1].State != store.NodeJoins || nodes[1].Left < 4*time.Second {
		t.Errorf("EnrollRedlock: %v; the Locker: %+v", err, nodes)
	}
}

// Nodes are restarted one after the other, with and without their data. In a second pass, each node
// is restarted before the nodes that were restarted earlier vote again. In total, more nodes
// are restarted than may be lost at the same time.
func TestRollingRestartsEndInNoOutage(t *testing.T) {
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
			enroll(t, clients(clientsOf(t, servers)), opts...)
			l := redlockOn(t, servers, opts...)
			release(t, acquire(t, l, locker.Rule{Key: "a"}))
			for _, patient := range []bool{true, false} {
				for i, s := range servers {
					s.Restart()
					if patient {
						release(t, acquire(t, l, locker.Rule{Key: "a", Wait: 5 * time.Second})) // one node is out, and no caller waits for it
						eventually(t, fmt.Sprintf("all vote after the restart of node %d", i), func() bool { return allVote(t, l) })
					}
				}
			}
			eventually(t, "all vote after restarts without a pause", func() bool { return allVote(t, l) })
			release(t, acquire(t, l, locker.Rule{Key: "a", Wait: locker.NoWait}))
		})
	}
}

// Two lists differ in one node, and all servers work. No key has two holders. The server that is
// not in the set gets the seat of the node that its list lacks only as a guess. This node takes its
// seat back as soon as a process of the other list looks. Then the wrong list is out, and a warning
// and Nodes say so. A list of another length gets an error that names the nodes of both lists.
func TestAWrongListPutsNoNodeOutForGood(t *testing.T) {
	t.Parallel()
	servers := startNodes(t, 4)
	cs := clientsOf(t, servers)
	right, wrong := clients(cs[:3]), []locker.Client{cs[0], cs[1], cs[3]}
	enroll(t, right, brief...)
	first := newRedlock(t, right, brief...)
	release(t, acquire(t, first, locker.Rule{Key: "x"}))
	watched := newWarnings()
	second := newRedlock(t, wrong, append(slices.Clone(brief), locker.WithObserver(watched))...)
	release(t, acquire(t, second, locker.Rule{Key: "x", Wait: 10 * time.Second})) // by the two nodes of both lists
	eventually(t, "the wrong server is out, and the others vote", func() bool {
		nodes, err := second.Nodes(t.Context())
		return err == nil && (nodes[2].State == store.NodeStranger || nodes[2].State == store.NodeReplaced) && allVote(t, first)
	})
	eventually(t, "a warning says so", func() bool {
		return slices.ContainsFunc(watched.list(), func(w locker.Warning) bool { return w.Code == "node-out" })
	})
	lease := acquire(t, first, locker.Rule{Key: "x"})
	if _, err := second.Acquire(t.Context(), locker.Rule{Key: "x", Wait: locker.NoWait}); err == nil && lease.Context().Err() == nil {
		t.Fatal("two hold the key")
	}
	longer := append(slices.Clone(wrong), cs[2], startNodes(t, 1)[0].Client(t))
	_, err := newRedlock(t, longer).Acquire(t.Context(), locker.Rule{Key: "z", Wait: locker.NoWait})
	if !errors.Is(err, locker.ErrQuorum) {
		t.Fatalf("%v, want ErrQuorum", err)
	}
	for _, s := range servers {
		if !strings.Contains(err.Error(), s.Addr()) {
			t.Errorf("%v: does not name %s", err, s.Addr())
		}
	}
}

// withoutAddress is a client that does not show its address, like a client of Sentinel or of
// another library.
type withoutAddress struct{ client *redis.Client }

func (w withoutAddress) Process(ctx context.Context, cmd redis.Cmder) error {
	return w.client.Process(ctx, cmd)
}

// The servers are enrolled under other names than the service uses, or in another order without
// addresses. Each server is restarted empty, one after the other, and finds its seat.
func TestNodesComeBackUnderOtherNamesAfterARollingRestart(t *testing.T) {
	t.Parallel()
	for name, list := range map[string]func(t *testing.T, servers []*redistest.Server) []locker.Client{
		"all names differ": func(t *testing.T, servers []*redistest.Server) (all []locker.Client) {
			for _, s := range servers {
				all = append(all, s.Client(t, func(o *redis.Options) { o.Addr = fmt.Sprint("localhost:", s.Port()) }))
			}
			return all
		},
		"one name differs": func(t *testing.T, servers []*redistest.Server) []locker.Client {
			all := clients(clientsOf(t, servers))
			all[1] = servers[1].Client(t, func(o *redis.Options) { o.Addr = fmt.Sprint("localhost:", servers[1].Port()) })
			return all
		},
		"another order": func(t *testing.T, servers []*redistest.Server) []locker.Client {
			return clients(clientsOf(t, []*redistest.Server{servers[2], servers[0], servers[1]}))
		},
		"no addresses, and another order": func(t *testing.T, servers []*redistest.Server) (all []locker.Client) {
			for _, i := range []int{1, 2, 0} {
				all = append(all, withoutAddress{servers[i].Client(t)})
			}
			return all
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := startNodes(t, 3)
			enrolled := clients(clientsOf(t, servers))
			if name == "no addresses, and another order" {
				for i, s := range servers {
					enrolled[i] = withoutAddress{s.Client(t)}
				}
			}
			opts := append(slices.Clone(brief), locker.WithNodeTimeout(500*time.Millisecond))
			enroll(t, enrolled, opts...)
			watched := newWarnings()
			l := newRedlock(t, list(t, servers), append(slices.Clone(opts), locker.WithObserver(watched))...)
			release(t, acquire(t, l, locker.Rule{Key: "a"}))
			eventually(t, "all vote", func() bool { return allVote(t, l) })
			if strings.Contains(name, "differ") {
				eventually(t, "a warning names the other name", func() bool {
					return slices.ContainsFunc(watched.list(), func(w locker.Warning) bool {
						return w.Code == "other-names" && strings.Contains(w.Text, "localhost:")
					})
				})
			}
			for range 2 {
				for i, s := range servers {
					s.Restart()
					release(t, acquire(t, l, locker.Rule{Key: "a", Wait: 10 * time.Second}))
					eventually(t, fmt.Sprintf("all vote after the restart of server %d", i), func() bool { return allVote(t, l) })
				}
			}
		})
	}
}

// Of three nodes, one has forgotten its leases and one does not answer. The third node's
// answers do not show whether the silent node is only cut off from this client, and still votes
// for other clients. So no caller gets a lock until the silent node answers.
func TestANodeThatForgotWaitsForTheOneThatIsDown(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3, brief...)
	l := redlockOn(t, servers, append(slices.Clone(brief), locker.WithNodeTimeout(500*time.Millisecond))...)
	release(t, acquire(t, l, locker.Rule{Key: "a"}))
	servers[2].Kill()
	servers[0].Client(t).FlushAll(t.Context())
	const wait = 700 * time.Millisecond
	for end := time.Now().Add(2 * wait); time.Now().Before(end); {
		if _, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 100 * time.Millisecond}); err == nil {
			t.Fatal("a node that forgot votes with one other")
		}
	}
	eventually(t, "the error says which node must answer", func() bool {
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: time.Second})
		return errors.Is(err, locker.ErrQuorum) && strings.Contains(err.Error(), servers[2].Addr()) && strings.Contains(err.Error(), "all nodes must answer")
	})
	servers[2].Restart()
	eventually(t, "all vote", func() bool { return allVote(t, l) })
	release(t, acquire(t, l, locker.Rule{Key: "a"}))
}

// One node is replaced while locks are taken. No key has two holders, all processes continue to
// lock, and in the end the new node votes.
func TestANodeIsReplacedWhileLocksAreTaken(t *testing.T) {
	t.Parallel()
	const longest = 4 * time.Second
	opts := append(slices.Clone(brief), locker.WithMaxTTL(longest))
	servers := startNodes(t, 4)
	cs := clientsOf(t, servers)
	enroll(t, clients(cs[:3]), opts...)
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
				if errors.Is(err, locker.ErrUnavailable) { // the machine is busy; the test shows below that both processes lock
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
	if err != nil || votesIn <= 0 || votesIn > longest+time.Second {
		t.Errorf("ReplaceNode: %v, %v; the leases of before end within %v", votesIn, err, longest)
	}
	eventually(t, "the new node votes", func() bool { return allVote(t, after) })
	was := grants[0].Load()
	eventually(t, "both lock on", func() bool { return grants[0].Load() > was+5 && grants[1].Load() > 10 })
	close(end)
	working.Wait()
	eventually(t, "the old list knows of the replacement", func() bool {
		nodes, err := before.Nodes(t.Context()) // a node may be slow to answer
		return err == nil && nodes[2].State == store.NodeReplaced
	})
	servers[0].Kill() // now a quorum needs the vote of the new node
	release(t, acquire(t, after, locker.Rule{Key: "y", Wait: 5 * time.Second}))
}

// A node that does not vote for a long time causes a warning, and Nodes shows the reason.
func TestANodeThatIsOutIsVisible(t *testing.T) {
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
			return slices.ContainsFunc(watched.list(), func(w locker.Warning) bool { return w.Code == code && strings.Contains(w.Text, "node 1 (") })
		}
	}
	eventually(t, "it is warned of", has("node-out"))
	nodes, err := l.Nodes(t.Context())
	if err != nil || nodes[1].State != store.NodeUnreachable || nodes[1].Reason == "" || nodes[0].State != store.NodeVotes || nodes[0].Addr != servers[0].Addr() {
		t.Errorf("%+v, %v", nodes, err)
	}
	servers[1].Resume()
	eventually(t, "its return is reported", has("node-returned"))
}

// A server whose settings allow the eviction of keys does not vote, even if the server has evicted
// no key.
func TestAServerThatMayEvictDoesNotVote(t *testing.T) {
	t.Parallel()
	servers := startNodes(t, 3)
	c := servers[2].Client(t)
	c.ConfigSet(t.Context(), "maxmemory", "64mb")
	c.ConfigSet(t.Context(), "maxmemory-policy", "volatile-lru")
	if err := locker.EnrollRedlock(t.Context(), clients(clientsOf(t, servers)), brief...); err == nil || !strings.Contains(err.Error(), "noeviction") {
		t.Fatalf("EnrollRedlock: %v", err)
	}
	c.ConfigSet(t.Context(), "maxmemory-policy", "noeviction")
	enroll(t, clients(clientsOf(t, servers)), brief...)
	l := redlockOn(t, servers, brief...)
	release(t, acquire(t, l, locker.Rule{Key: "a"}))
	c.ConfigSet(t.Context(), "maxmemory-policy", "volatile-lru")
	eventually(t, "the change is noticed", func() bool {
		nodes, err := l.Nodes(t.Context())
		return err == nil && nodes[2].State == store.NodeEvicts
	})
}
