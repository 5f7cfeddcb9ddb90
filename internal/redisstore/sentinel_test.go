package redisstore_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// The master dies with writes that no replica has: leases, and the last increments of the fence
// counters.
func TestASentinelFailoverThatLosesWrites(t *testing.T) {
	t.Parallel()
	var pipe *chaos.Pipe
	set := redistest.StartSentinel(t, func(master string) string {
		pipe = chaos.NewPipe(t, master)
		return pipe.Addr()
	})
	client := set.Client(t)
	ls := []*locker.Engine{newSingle(t, client), newSingle(t, set.Client(t))}
	c := startBustle(t, ls, []string{"a", "b"}, 4, locker.Rule{TTL: 5 * time.Second})
	known := acquire(t, ls[0], locker.Rule{Key: "known", TTL: 2 * time.Minute}) // longer than a failover takes on a busy machine
	client.IncrBy(t.Context(), "counter", 10)
	for _, replica := range set.Servers[1:] {
		direct := replica.Client(t)
		eventually(t, "a replica knows lease and counter", func() bool { return direct.Exists(t.Context(), "known", "counter").Val() == 2 })
	}
	c.awaitSections()

	pipe.Freeze()
	lostLease := acquire(t, ls[0], locker.Rule{Key: "lost", TTL: 20 * time.Second})
	waiter := queues(t, ls[1], locker.Rule{Key: "lost"}, client)
	client.IncrBy(t.Context(), "counter", 10)
	c.awaitSections()
	before := c.largestFences()
	if pipe.Kept() == 0 {
		t.Fatal("positive control: no replication was kept back")
	}
	set.Servers[0].Kill()
	promoted := set.Promoted(t).Client(t)

	lost(t, lostLease, locker.ErrLost)
	next := waiter.Granted(30 * time.Second)
	if next.Fence() <= lostLease.Fence() {
		t.Errorf("fence %d after %d", next.Fence(), lostLease.Fence())
	}
	release(t, next)
	c.awaitSections()
	if err := known.Context().Err(); err != nil {
		t.Errorf("the lease that the replicas knew ended: %v", context.Cause(known.Context()))
	}
	release(t, known)
	if n, err := promoted.Get(t.Context(), "counter").Int(); n != 10 {
		t.Fatalf("positive control: a plain counter is at %d after the failover (%v), want it to have lost writes", n, err)
	}
	c.end()
	for key, most := range before {
		fences := c.grants[key]
		after := false
		for i, fence := range fences {
			if fence == most {
				after = true
				fences = fences[i+1:]
				break
			}
		}
		if !after || len(fences) == 0 {
			t.Fatalf("%s: nothing was granted after the failover", key)
		}
		for _, fence := range fences {
			if fence <= most {
				t.Errorf("%s: fence %d after %d", key, fence, most)
			}
		}
	}
	for _, err := range c.errs { // a failover takes longer than the time allowed for a first answer
		if !errors.Is(err, locker.ErrUnavailable) && !errors.Is(err, locker.ErrLost) {
			t.Error(err)
		}
	}
}

func TestAPlannedSentinelFailoverLosesNoWaiter(t *testing.T) {
	t.Parallel()
	set := redistest.StartSentinel(t)
	client := set.Client(t)
	a, b := newSingle(t, client), newSingle(t, set.Client(t))
	holder := acquire(t, a, locker.Rule{Key: "a"})
	waiter := queues(t, b, locker.Rule{Key: "a"}, client)
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: set.Addrs()[0]})
	t.Cleanup(func() { _ = sentinel.Close() })
	if err := sentinel.Failover(t.Context(), redistest.SentinelName).Err(); err != nil {
		t.Fatal(err)
	}
	promoted := set.Promoted(t).Client(t)
	eventually(t, "the waiter listens at the new master", func() bool {
		return len(promoted.PubSubChannels(t.Context(), "latchkit:i:*").Val()) == 1
	})
	if err := holder.Context().Err(); err != nil {
		t.Fatalf("the lease was lost, although it was replicated: %v", context.Cause(holder.Context()))
	}
	// A write to the old master after the failover, for example a release, is lost when this
	// master becomes a replica.
	eventually(t, "the holder's client has changed over", func() bool {
		return runID(t, client) == runID(t, promoted)
	})
	release(t, holder)
	release(t, waiter.Granted(10*time.Second))
}

func runID(t *testing.T, c *redis.Client) string {
	t.Helper()
	return c.InfoMap(t.Context(), "server").Item("Server", "run_id")
}

// A subscription may stay on the old master, which still runs as a replica. The client cannot see
// that anything is wrong. Only the new master knows that no process listens.
func TestASubscriptionThatStaysOnTheOldMasterIsNoticed(t *testing.T) {
	t.Parallel()
	before := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(before.Addr())
	if err != nil {
		t.Fatal(err)
	}
	after := redistest.Start(t, "--replicaof", host, port)
	then, now := before.Client(t), after.Client(t)
	eventually(t, "the replica follows", func() bool { return then.Wait(t.Context(), 1, time.Second).Val() == 1 })

	var addr atomic.Value // address to which the service name resolves
	addr.Store(before.Addr())
	client := func() *redis.Client {
		c := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr.Load().(string))
		}})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	holder := acquire(t, newSingle(t, client()), locker.Rule{Key: "a"})
	waiter := queues(t, newSingle(t, client()), locker.Rule{Key: "a"}, then)

	eventually(t, "the replica knows who waits", func() bool { return inLine(t, now, "a") == 1 })
	addr.Store(after.Addr())
	if err := now.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	if err := then.ReplicaOf(t.Context(), host, strings.TrimPrefix(after.Addr(), host+":")).Err(); err != nil {
		t.Fatal(err)
	}
	if n := len(then.PubSubChannels(t.Context(), "latchkit:i:*").Val()); n != 1 {
		t.Fatalf("positive control: %d subscriptions stayed on the old master, want 1", n)
	}
	eventually(t, "the waiter listens at the new master", func() bool {
		return len(now.PubSubChannels(t.Context(), "latchkit:i:*").Val()) == 1
	})
	if err := holder.Context().Err(); err != nil {
		t.Fatal(context.Cause(holder.Context()))
	}
	release(t, holder)
	release(t, waiter.Granted(time.Second))
}
