package quorum_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/quorum"
	"github.com/latchkit/latchkit/internal/redisstore"
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
		{"it was emptied", func(t *testing.T, _ *redistest.Server, c *redis.Client) {
			if err := c.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		for _, guarded := range []bool{true, false} {
			name := c.name
			if !guarded {
				name += ", and no process is notified"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				servers := startNodes(t, 3)
				checkForgetting(t, servers, guarded, c.forget)
			})
		}
	}
}

// checkForgetting lets one of three servers forget its vote by forget, and checks that the node
// does not vote. If guarded is false, the check of the marker is disabled, and the test expects two
// holders.
func checkForgetting(t *testing.T, servers []*redistest.Server, guarded bool, forget func(*testing.T, *redistest.Server, *redis.Client)) {
	t.Helper()
	enroll(t, clients(clientsOf(t, servers)), shortQuarantine...)
	cs := clientsOf(t, servers)
	holder := newRedlock(t, []locker.Client{cs[0], cs[1], deadNode(t)}, append(shortQuarantine, locker.WithoutRenewal())...)
	lease := acquire(t, holder, locker.Rule{Key: "held", TTL: 6 * time.Second})

	marker := cs[1].Get(t.Context(), "latchkit:node").Val()
	forget(t, servers[1], cs[1])
	eventually(t, "it has forgotten the lease", func() bool {
		return cs[1].Exists(t.Context(), "held").Val() == 0 && cs[1].Ping(t.Context()).Err() == nil
	})
	if !guarded { // positive control: without the check of the marker, two callers would hold the key
		id := strings.TrimSpace(strings.SplitN(strings.SplitN(cs[1].Info(t.Context(), "replication").Val(), "master_replid:", 2)[1], "\n", 2)[0])
		cs[1].Set(t.Context(), "latchkit:node", id+marker[40:], 0)
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
	if _, err := cs[2].Ping(t.Context()).Result(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all nodes vote", func() bool { return allVote(t, other) })
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

// A server and its replica are not two nodes: only one of them may vote.
func TestAServerAndItsReplicaAreNoTwoNodes(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	replica := redistest.Start(t, "--replicaof", "127.0.0.1", strconv.Itoa(servers[0].Port()), "--repl-diskless-sync-delay", "0")
	copied := replica.Client(t)
	eventually(t, "the replica is in step", func() bool {
		return strings.Contains(copied.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	l := newRedlock(t, clients([]*redis.Client{servers[0].Client(t), copied, deadNode(t)}), locker.WithNodeTimeout(100*time.Millisecond))
	_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 200 * time.Millisecond})
	wantErr(t, err, "a", locker.ErrQuorum)
	wantNot(t, err, locker.ErrBusy)
}

func TestNewServersVoteAfterTheirQuarantineUnlessTheyAreEnrolled(t *testing.T) {
	t.Parallel()
	servers := startNodes(t, 3)
	l := redlockOn(t, servers, shortQuarantine...)
	begun := time.Now()
	eventually(t, "the error says what to do", func() bool { // on a busy machine the nodes may not have answered yet
		_, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 200 * time.Millisecond})
		wantErr(t, err, "a", locker.ErrUnavailable)
		return errors.Is(err, locker.ErrQuorum) && strings.Contains(err.Error(), "EnrollRedlock")
	})
	for {
		lease, err := l.Acquire(t.Context(), locker.Rule{Key: "a", Wait: 500 * time.Millisecond})
		if err == nil {
			release(t, lease)
			break
		}
		if time.Since(begun) > time.Minute {
			t.Fatal(err)
		}
	}
	if early := time.Since(begun); early < 6*time.Second {
		t.Errorf("they voted after %v", early)
	}
	if err := locker.EnrollRedlock(t.Context(), clients(clientsOf(t, servers)), shortQuarantine...); err != nil {
		t.Errorf("enrolling nodes that vote already: %v", err)
	}
}

// A node whose data was replaced must not be enrolled, because an enrolment would hide that the
// node forgot.
func TestOnlyNewServersAreEnrolled(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	c := servers[1].Client(t)
	c.Set(t.Context(), "latchkit:node", strings.Repeat("ab", 20)+":60000", 0) // as if the marker were copied from another server
	err := locker.EnrollRedlock(t.Context(), clients(clientsOf(t, servers)))
	if err == nil || !strings.Contains(err.Error(), "node 1 (") || !strings.Contains(err.Error(), "does not vote for another") {
		t.Errorf("%v", err)
	}
}

// When the same server loses its data a second time, another wait begins.
func TestASecondLossBeginsAnotherQuarantine(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3, shortQuarantine...)
	l, other := redlockOn(t, servers, shortQuarantine...), redlockOn(t, servers, shortQuarantine...)
	c := servers[0].Client(t)
	if !allVote(t, l) || !allVote(t, other) {
		t.Fatal("they are enrolled")
	}
	c.FlushAll(t.Context())
	if allVote(t, l) {
		t.Fatal("it has forgotten")
	}
	eventually(t, "the other process has ended the wait", func() bool { return allVote(t, other) })
	c.FlushAll(t.Context())
	again := time.Now()
	if allVote(t, other) {
		t.Fatal("it has forgotten")
	}
	eventually(t, "all nodes vote", func() bool { return allVote(t, l) })
	if d := time.Since(again); d < 6*time.Second {
		t.Errorf("after the second loss it voted again after %v", d)
	}
}

// A process that uses longer leases than others records their TTL at the nodes. A node that forgot
// its data has lost this record. So the records of the other nodes decide how long this node must
// not vote.
func TestANodeThatForgotStaysOutForTheLongestLeaseOfAll(t *testing.T) {
	t.Parallel()
	brief := []locker.QuorumOption{locker.WithTTL(500 * time.Millisecond), locker.WithMaxTTL(500 * time.Millisecond), locker.WithMaxSkew(50 * time.Millisecond)}
	servers := enrolled(t, 3, brief...)
	other := redlockOn(t, servers, brief...)
	// This Locker reads the records of the nodes before longer leases are used.
	release(t, acquire(t, other, locker.Rule{Key: "warm"}))

	cs := clientsOf(t, servers)
	long := []locker.QuorumOption{locker.WithMaxTTL(6 * time.Second), locker.WithTTL(6 * time.Second), locker.WithMaxSkew(50 * time.Millisecond), locker.WithoutRenewal()}
	holder := newRedlock(t, []locker.Client{cs[0], cs[1], deadNode(t)}, long...)
	lease := acquire(t, holder, locker.Rule{Key: "held"})
	cs[1].FlushAll(t.Context())

	var next *locker.Lease
	eventually(t, "it has forgotten for long enough", func() (granted bool) {
		var err error
		next, err = other.Acquire(t.Context(), locker.Rule{Key: "held", Wait: locker.NoWait})
		return err == nil
	})
	if lease.Context().Err() == nil {
		t.Error("two hold the key")
	}
	if next.Fence() <= lease.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), lease.Fence())
	}
	release(t, next)
}

// A node puts its time together from the digits of seconds and microseconds. The zeros at the
// start of the microseconds must not get lost.
func TestANodeTellsItsClockWithItsZeros(t *testing.T) {
	t.Parallel()
	c := clientsOf(t, enrolled(t, 3)[:1])[0]
	text := c.Get(t.Context(), "latchkit:node").Val()
	for i := 0; ; i++ {
		before := c.Time(t.Context()).Val()
		hint := strconv.FormatInt(before.UnixMicro(), 10)
		key := fmt.Sprintf("k%d", i)
		v, err := c.Eval(t.Context(), quorum.ScriptTexts["vote"],
			[]string{key, redisstore.QueueKey(key), "w", redisstore.CounterKey(key), redisstore.TombstoneKey(key, "o"), "latchkit:node", redisstore.DoneKey(key), "r", "i"},
			text, "o:"+hint+":1:"+hint+":", 60_000, hint, hint, before.UnixMicro()-500_000, before.UnixMicro()+500_000).Text()
		if err != nil {
			t.Fatal(err)
		}
		after := c.Time(t.Context()).Val()
		micros, err := strconv.ParseInt(strings.Fields(v)[1], 10, 64)
		if clock := time.UnixMicro(micros); err != nil || clock.Before(before) || clock.After(after) {
			t.Fatalf("%q: %v, between %v and %v", v, clock, before, after)
		}
		lease := "o:" + hint + ":1:" + hint + ":"
		if want, held := fmt.Sprint("1 ", micros), c.Get(t.Context(), key).Val(); v != want || held != lease {
			t.Fatalf("%q for %q, want %q for %q", v, held, want, lease)
		}
		if after.Nanosecond() < int(100*time.Millisecond) && after.Second() == before.Second() {
			return
		}
	}
}

// A node that forbids subscriptions is named by a warning, and by Nodes.
func TestAQuorumNamesTheNodeThatSendsNoMessages(t *testing.T) {
	t.Parallel()
	servers := startNodes(t, 3)
	enroll(t, clients(clientsOf(t, servers)))
	holder := redlockOn(t, servers)
	lease := acquire(t, holder, locker.Rule{Key: "order:1"})
	if err := servers[1].Client(t).Do(t.Context(), "acl", "setuser", "default", "-subscribe").Err(); err != nil {
		t.Fatal(err)
	}
	watched := newWarnings()
	l := redlockOn(t, servers, locker.WithObserver(watched))
	granted := make(chan *locker.Lease, 1)
	go func() {
		next, _ := l.Acquire(t.Context(), locker.Rule{Key: "order:1", Wait: time.Minute})
		granted <- next
	}()
	eventually(t, "a warning names the node", func() bool {
		return slices.ContainsFunc(watched.list(), func(w locker.Warning) bool {
			return w.Code == "no-messages" && strings.Contains(w.Text, servers[1].Addr())
		})
	})
	nodes, err := l.Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range nodes {
		if (n.Polls != "") != (i == 1) {
			t.Errorf("node %d: %q", i, n.Polls)
		}
	}
	release(t, lease)
	release(t, <-granted)
}
