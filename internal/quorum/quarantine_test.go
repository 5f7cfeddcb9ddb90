package quorum_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// shortQuarantine are options with which nodes that may have forgotten leases vote again after
// about 6 s.
var shortQuarantine = []locker.QuorumOption{locker.WithTTL(2 * time.Second), locker.WithMaxTTL(6 * time.Second), locker.WithMaxSkew(100 * time.Millisecond), locker.WithNodeTimeout(time.Second)}

// Of three nodes, two have voted for a holder. When one of these two nodes forgets its vote, this
// node and the third node could be a quorum for another holder. So the node that forgot must not
// vote, whatever the cause. When the lease is over, the node must vote again.
func TestANodeThatMayHaveForgottenDoesNotVote(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		forget func(t *testing.T, s *redistest.Server, c *redis.Client)
	}{
		{"it was restarted", func(_ *testing.T, s *redistest.Server, _ *redis.Client) { s.Restart() }},
		{"it was restarted with an older copy of its data", func(t *testing.T, s *redistest.Server, c *redis.Client) {
			marker := c.Get(t.Context(), "latchkit:node").Val()
			s.Restart()
			eventually(t, "the copy is back", func() bool { return c.Set(t.Context(), "latchkit:node", marker, 0).Err() == nil })
		}},
		{"it was emptied", func(t *testing.T, _ *redistest.Server, c *redis.Client) {
			if err := c.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		for _, guarded := range []bool{true, false} {
			name := c.name
			if !guarded {
				name += ", and is declared new"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				checkForgetting(t, startNodes(t, 3), guarded, c.forget)
			})
		}
	}
}

// checkForgetting lets one of three servers forget its vote by forget, and checks that the node
// does not vote. If guarded is false, the node's marker says that it remembers its leases, and the
// test expects two holders.
func checkForgetting(t *testing.T, servers []*redistest.Server, guarded bool, forget func(*testing.T, *redistest.Server, *redis.Client)) {
	t.Helper()
	enroll(t, clients(clientsOf(t, servers)), shortQuarantine...)
	cs := clientsOf(t, servers)
	holder := newRedlock(t, []locker.Client{cs[0], cs[1], deadNode(t)}, append(shortQuarantine, locker.WithoutRenewal())...)
	lease := acquire(t, holder, locker.Rule{Key: "held", TTL: 6 * time.Second})

	forget(t, servers[1], cs[1])
	eventually(t, "it has forgotten the lease", func() bool {
		return cs[1].Exists(t.Context(), "held").Val() == 0 && cs[1].Ping(t.Context()).Err() == nil
	})
	if !guarded { // positive control: without its marker, two callers would hold the key
		cs[1].Set(t.Context(), "latchkit:node", identityOf(t, cs[1])+"/0000000000000000/3/6000", 0)
	}
	other := redlockOn(t, servers, shortQuarantine...)
	_, err := other.Acquire(t.Context(), locker.Rule{Key: "held", Wait: locker.NoWait})
	if lease.Context().Err() != nil {
		t.Fatal("the lease has run out meanwhile: this machine was too slow for the test to show anything")
	}
	if !guarded {
		if err != nil {
			t.Errorf("positive control: %v, although a node that forgot was declared new", err)
		}
		return
	}
	if err == nil {
		t.Fatal("two hold the key")
	}
	again := acquire(t, other, locker.Rule{Key: "held", Wait: 30 * time.Second})
	if lease.Context().Err() == nil {
		t.Error("two hold the key")
	}
	if again.Fence() <= lease.Fence() {
		t.Errorf("fence %d after %d", again.Fence(), lease.Fence())
	}
	release(t, again)
	eventually(t, "all nodes vote", func() bool { return allVote(t, other) })
}

// brief are options with which nodes wait for about 0.6 s.
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

// tries acquires the key without a wait, and releases it. It returns the error of the acquire.
func tries(t *testing.T, l *locker.Engine, key string) error {
	t.Helper()
	lease, err := l.Acquire(t.Context(), locker.Rule{Key: key, Wait: locker.NoWait})
	if err == nil {
		_ = lease.Release(t.Context())
	}
	return err
}

// allVote reports whether all nodes of a quorum vote.
func allVote(t *testing.T, l *locker.Engine) bool {
	t.Helper()
	nodes, err := l.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if n.State != store.NodeVotes {
			return false
		}
	}
	return true
}

// A replica that takes its master's place has the marker, but not the master's identity.
func TestAReplicaThatTakesItsMastersPlaceDoesNotVoteAtOnce(t *testing.T) {
	t.Parallel()
	servers := startNodes(t, 3)
	replica := redistest.Start(t, "--replicaof", "127.0.0.1", strconv.Itoa(servers[1].Port()), "--repl-diskless-sync-delay", "0")
	copied := replica.Client(t)
	eventually(t, "the replica is in step", func() bool {
		return strings.Contains(copied.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	enroll(t, clients(clientsOf(t, servers)), shortQuarantine...)
	eventually(t, "the marker is copied", func() bool { return copied.Exists(t.Context(), "latchkit:node").Val() == 1 })

	l := redlockOn(t, servers, append(shortQuarantine, locker.WithoutRenewal())...)
	release(t, acquire(t, l, locker.Rule{Key: "warm"}))
	if err := copied.ReplicaOf(t.Context(), "no", "one").Err(); err != nil { // stop the copying before the lease below is granted
		t.Fatal(err)
	}
	cs := clientsOf(t, servers)
	holder := newRedlock(t, []locker.Client{cs[0], cs[1], deadNode(t)}, append(shortQuarantine, locker.WithoutRenewal())...)
	acquire(t, holder, locker.Rule{Key: "held", TTL: 6 * time.Second})
	servers[1].Kill()

	servers[1] = replica
	other := redlockOn(t, servers, shortQuarantine...)
	_, err := other.Acquire(t.Context(), locker.Rule{Key: "held", Wait: locker.NoWait})
	if err == nil {
		t.Fatal("the replica has voted although it lacks the lease")
	}
	release(t, acquire(t, other, locker.Rule{Key: "held", Wait: 30 * time.Second}))
}

// New servers wait as if they had lost all leases. The wait is that of the nodes: a process that
// lives for a moment begins it, and another one finds it over.
func TestNewServersVoteAfterTheirWait(t *testing.T) {
	t.Parallel()
	servers := startNodes(t, 3)
	asks := func() error {
		l, err := locker.NewRedlock(clients(clientsOf(t, servers)), shortQuarantine...)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close(t.Context())
		return tries(t, l, "cron")
	}
	begun := time.Now()
	for try := 0; ; try++ {
		err := asks()
		if err == nil {
			break
		}
		var e *locker.Error
		if !errors.Is(err, locker.ErrQuorum) || !strings.Contains(err.Error(), "EnrollRedlock") || !errors.As(err, &e) || e.RetryAfter <= 0 || e.RetryAfter > 7*time.Second {
			t.Fatalf("try %d: %v", try, err)
		}
		if time.Since(begun) > time.Minute {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) //nolint:forbidigo // between two processes
	}
	if early := time.Since(begun); early < 6*time.Second {
		t.Errorf("they voted after %v", early)
	}
}

// An enrolment declares that servers hold no leases. So it refuses unless every server is new.
func TestOnlyNewServersAreEnrolled(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(t *testing.T, cs []*redis.Client)
		says   string
	}{
		"a marker of another server": {func(t *testing.T, cs []*redis.Client) {
			cs[1].Set(t.Context(), "latchkit:node", strings.Repeat("ab", 20)+"/0000000000000000/3/60000", 0)
		}, "node 1 ("},
		"one is enrolled": {func(t *testing.T, cs []*redis.Client) {
			cs[1].Set(t.Context(), "latchkit:node", identityOf(t, cs[1])+"/0000000000000000/3/60000", 0)
		}, "are nodes already"},
		"a lease": {func(t *testing.T, cs []*redis.Client) {
			acquire(t, newSingle(t, cs[2]), locker.Rule{Key: "order:1"})
		}, "order:1"},
		"it may evict": {func(t *testing.T, cs []*redis.Client) {
			cs[0].ConfigSet(t.Context(), "maxmemory", "100mb")
			cs[0].ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru")
		}, "noeviction"},
		"one does not answer": {func(t *testing.T, cs []*redis.Client) { cs[0].Close() }, "node 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := startNodes(t, 3)
			cs := clientsOf(t, servers)
			c.before(t, cs)
			before := strings.Join(markersOf(t, servers), " ")
			err := locker.EnrollRedlock(t.Context(), clients(cs))
			if !errors.Is(err, locker.ErrQuorum) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
			if after := strings.Join(markersOf(t, servers), " "); after != before {
				t.Errorf("the markers %q became %q", before, after)
			}
		})
	}
	servers := enrolled(t, 3)
	if err := locker.EnrollRedlock(t.Context(), clients(clientsOf(t, servers))); err == nil || !strings.Contains(err.Error(), "nodes already, and all vote") {
		t.Errorf("a second enrolment: %v", err)
	}
	one := servers[0].Client(t)
	if err := locker.EnrollRedlock(t.Context(), clients([]*redis.Client{one, servers[0].Client(t), servers[1].Client(t)})); err == nil {
		t.Error("one server was enrolled twice")
	}
}

// stopsAt is a hook that stops the server for two seconds before a script.
type stopsAt struct {
	script string
	once   *sync.Once
	server *redistest.Server
}

func (s stopsAt) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s stopsAt) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (s stopsAt) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 1 && args[1] == scriptSHA(s.script) {
			s.once.Do(func() {
				s.server.Pause()
				time.AfterFunc(2*time.Second, s.server.Resume)
			})
		}
		return next(ctx, cmd)
	}
}

// An enrolment needs all servers, so it waits longer for each of them than a lock would.
func TestAnEnrolmentWaitsForAServerThatIsSlow(t *testing.T) {
	t.Parallel()
	for _, slow := range []string{"look", "mark"} {
		t.Run(slow, func(t *testing.T) {
			t.Parallel()
			var cs []locker.Client
			var once sync.Once
			for _, server := range startNodes(t, 3) {
				c := server.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
				c.AddHook(stopsAt{slow, &once, server})
				cs = append(cs, c)
			}
			began := time.Now()
			if err := locker.EnrollRedlock(t.Context(), cs); err != nil || time.Since(began) < 2*time.Second {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
		})
	}
}

// markersOf returns the markers of the servers.
func markersOf(t *testing.T, servers []*redistest.Server) (all []string) {
	t.Helper()
	for _, s := range servers {
		all = append(all, s.Client(t).Get(t.Context(), "latchkit:node").Val())
	}
	return all
}

// All processes have the same longest TTL and the same number of nodes, because a wait must be as
// long as the longest lease of any process. Another value is refused, until an operator changes it
// at all nodes.
func TestAnotherLongestTTLIsRefusedUntilAllNodesHaveIt(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3, brief...)
	longer := []locker.QuorumOption{locker.WithTTL(time.Second), locker.WithMaxTTL(20 * time.Second), locker.WithMaxSkew(50 * time.Millisecond)}
	old, young := redlockOn(t, servers, brief...), redlockOn(t, servers, longer...)
	refused := func(l *locker.Engine) {
		t.Helper()
		if err := tries(t, l, "x"); !errors.Is(err, locker.ErrQuorum) || !strings.Contains(err.Error(), "latchctl enroll --max-ttl") {
			t.Errorf("%v", err)
		}
	}
	if err := tries(t, old, "x"); err != nil {
		t.Error(err)
	}
	refused(young)
	five := redlockOn(t, append(startNodes(t, 2), servers...), brief...)
	if err := tries(t, five, "x"); err == nil || !strings.Contains(err.Error(), "3 nodes") {
		t.Errorf("with another number of nodes: %v", err)
	}
	if nodes, err := young.Nodes(t.Context()); err != nil || nodes[0].State != store.NodeStranger {
		t.Errorf("%+v, %v", nodes, err)
	}

	cs := clientsOf(t, servers)
	if err := locker.EnrollRedlock(t.Context(), clients(cs)); err == nil || !strings.Contains(err.Error(), "give WithMaxTTL") {
		t.Errorf("a change that was not asked for: %v", err)
	}
	servers[2].Pause()
	if err := locker.EnrollRedlock(t.Context(), clients(cs), longer...); err == nil {
		t.Error("it was changed although a node does not answer")
	}
	servers[2].Resume()
	if err := locker.EnrollRedlock(t.Context(), clients(cs), longer...); err != nil {
		t.Fatal(err)
	}
	refused(old)
	if err := tries(t, young, "x"); err != nil {
		t.Error(err)
	}
	servers[1].Client(t).FlushAll(t.Context())
	eventually(t, "the node waits", func() bool { _ = tries(t, young, "x"); return markersOf(t, servers)[1] != "" })
	if err := locker.EnrollRedlock(t.Context(), clients(cs), brief...); err == nil {
		t.Error("it was changed although a node waits")
	}
}

// Markers have whole milliseconds, and a longest TTL with a fraction is no obstacle.
func TestALongestTTLNeedsNoWholeMilliseconds(t *testing.T) {
	t.Parallel()
	opts := []locker.QuorumOption{locker.WithTTL(10 * time.Second / 3), locker.WithMaxTTL(10 * time.Second / 3)}
	if err := tries(t, redlockOn(t, enrolled(t, 3, opts...), opts...), "x"); err != nil {
		t.Error(err)
	}
}

// When the same server loses its data a second time, another wait begins.
func TestASecondLossBeginsAnotherWait(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3, shortQuarantine...)
	l := redlockOn(t, servers, shortQuarantine...)
	c := servers[0].Client(t)
	var again time.Time
	for range 2 {
		c.FlushAll(t.Context())
		again = time.Now()
		for markersOf(t, servers)[0] == "" {
			_ = tries(t, l, "x")
		}
		time.Sleep(time.Second) //nolint:forbidigo // a part of the first wait
	}
	eventually(t, "all nodes vote", func() bool { return allVote(t, l) })
	if d := time.Since(again); d < 6*time.Second {
		t.Errorf("after the second loss it voted again after %v", d)
	}
}

// A look at a node begins no wait, and only a vote does.
func TestALookBeginsNoWait(t *testing.T) {
	t.Parallel()
	servers := startNodes(t, 3)
	l := redlockOn(t, servers, brief...)
	for range 2 {
		nodes, err := l.Nodes(t.Context())
		if err != nil || nodes[1].State != store.NodeJoins || nodes[1].Left <= 0 || !strings.Contains(nodes[1].Reason, "its wait begins when") {
			t.Errorf("%+v, %v", nodes, err)
		}
	}
	if all := strings.Join(markersOf(t, servers), ""); all != "" {
		t.Errorf("markers after a look: %q", all)
	}
}

// A node whose clock is wrong begins no wait. Otherwise, when its clock is set right, the wait would
// end too early.
func TestANodeBootsWithAWrongClock(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{-time.Minute, time.Minute} {
		servers := enrolled(t, 3, brief...)
		cs := clientsOf(t, servers)
		cs[0].FlushAll(t.Context())
		wrong := newRedlock(t, replaceNodes(cs, map[int]locker.Client{0: skewedNode(t, servers[0], by)}), brief...)
		for range 5 {
			if err := tries(t, wrong, "x"); err != nil {
				t.Fatal(err)
			}
		}
		if text := markersOf(t, servers)[0]; text != "" {
			t.Errorf("by %v: it has begun its wait: %q", by, text)
		}
		right := redlockOn(t, servers, brief...)
		eventually(t, "it votes when its clock is right", func() bool { _ = tries(t, right, "x"); return allVote(t, right) })
	}
}

// A server that may evict keys may evict leases.
func TestAServerThatMayEvictDoesNotVote(t *testing.T) {
	t.Parallel()
	servers := startNodes(t, 3)
	enroll(t, clients(clientsOf(t, servers)), brief...)
	evicting := servers[0].Client(t)
	evicting.ConfigSet(t.Context(), "maxmemory", "100mb")
	evicting.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru")
	watched := newWarnings()
	l := redlockOn(t, servers, append(slices.Clip(brief), locker.WithObserver(watched))...)
	lease := acquire(t, l, locker.Rule{Key: "x"})
	if evicting.Exists(t.Context(), "x").Val() != 0 {
		t.Error("it has voted")
	}
	release(t, lease)
	if nodes, err := l.Nodes(t.Context()); err != nil || nodes[0].State != store.NodeEvicts || nodes[1].State != store.NodeVotes {
		t.Errorf("%+v, %v", nodes, err)
	}
	warned := func(code string) bool {
		return slices.ContainsFunc(watched.list(), func(w locker.Warning) bool { return w.Code == code })
	}
	eventually(t, "a warning", func() bool { _ = tries(t, l, "x"); return warned("node-out") })
	evicting.ConfigSet(t.Context(), "maxmemory-policy", "noeviction")
	eventually(t, "it votes again", func() bool { _ = tries(t, l, "x"); return warned("node-returned") })
	evicting.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru")
	eventually(t, "the process reads the policy once a quarantine", func() bool {
		lease, err := l.Acquire(t.Context(), locker.Rule{Key: "x"})
		if err != nil {
			t.Fatal(err)
		}
		defer release(t, lease)
		return evicting.Exists(t.Context(), "x").Val() == 0
	})
}

// An operator stops a node for good, starts an empty server, and gives the processes the new list,
// in any order. The new server waits, so no list grants what the other list has granted. If the old
// server runs on, the lists may have no node in common among their votes: this is the operator's
// part.
func TestANodeIsReplacedByAnEmptyServer(t *testing.T) {
	t.Parallel()
	for name, stopped := range map[string]bool{"the old server is stopped": true, "positive control: the old server runs on": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := enrolled(t, 3, shortQuarantine...)
			cs := clientsOf(t, servers)
			newcomer := redistest.Start(t)
			list := replaceNodes(cs, map[int]locker.Client{2: newcomer.Client(t)}) // servers 0, 1 and the new one
			old := replaceNodes(cs, map[int]locker.Client{1: deadNode(t)})         // this process reaches servers 0 and 2 only
			young := newRedlock(t, slices.Concat([]locker.Client{deadNode(t)}, list[1:]), shortQuarantine...)
			if stopped {
				servers[2].Kill()
			}
			early := newRedlock(t, list, shortQuarantine...)
			eventually(t, "the new server votes after its wait", func() bool { _ = tries(t, early, "y"); return allVote(t, early) })
			first, oldErr := newRedlock(t, old, append(shortQuarantine, locker.WithoutRenewal())...).Acquire(t.Context(), locker.Rule{Key: "x", TTL: 6 * time.Second, Wait: locker.NoWait})
			second, youngErr := young.Acquire(t.Context(), locker.Rule{Key: "x", Wait: locker.NoWait})
			if stopped != (oldErr != nil) || youngErr != nil {
				t.Errorf("the old list: %v, the new list: %v", oldErr, youngErr)
			}
			for _, l := range []*locker.Lease{first, second} {
				if l != nil {
					_ = l.Release(t.Context())
				}
			}
		})
	}
}

// While the old server is stopped, its leases are over before the new server votes.
func TestAReplacementWaitsForTheLeasesOfTheOldServer(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3, shortQuarantine...)
	cs := clientsOf(t, servers)
	holder := newRedlock(t, replaceNodes(cs, map[int]locker.Client{1: deadNode(t)}), append(shortQuarantine, locker.WithoutRenewal())...)
	lease := acquire(t, holder, locker.Rule{Key: "x", TTL: 6 * time.Second})
	servers[2].Kill()
	list := replaceNodes(cs, map[int]locker.Client{0: deadNode(t), 2: redistest.Start(t).Client(t)})
	next := acquire(t, newRedlock(t, list, shortQuarantine...), locker.Rule{Key: "x", Wait: 30 * time.Second})
	if lease.Context().Err() == nil {
		t.Error("two hold the key")
	}
	if next.Fence() <= lease.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), lease.Fence())
	}
	release(t, next)
}
