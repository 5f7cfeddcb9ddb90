package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// replicaOffset finds how far a replica has got, in the master's INFO replication.
var replicaOffset = regexp.MustCompile(`slave\d+:[^\r\n]*offset=(\d+)`)

// caughtUp reports whether all replicas of a master have everything that it has written, as its
// INFO replication says.
func caughtUp(t *testing.T, master *redis.Client) bool {
	t.Helper()
	info := master.Info(t.Context(), "replication").Val()
	own := regexp.MustCompile(`master_repl_offset:(\d+)`).FindStringSubmatch(info)
	replicas := replicaOffset.FindAllStringSubmatch(info, -1)
	for _, r := range replicas {
		if own == nil || r[1] != own[1] {
			return false
		}
	}
	return len(replicas) > 0
}

// held acquires n leases, and returns a check that none of them was lost.
func held(t *testing.T, l *locker.Engine, n int) (check func()) {
	t.Helper()
	var leases []*locker.Lease
	for i := range n {
		leases = append(leases, acquire(t, l, locker.Rule{Key: fmt.Sprint("held:", i)}))
	}
	return func() {
		t.Helper()
		for _, lease := range leases {
			before := lease.Expires()
			if err := lease.Extend(t.Context(), time.Minute); err != nil || !lease.Expires().After(before) {
				t.Errorf("%s: %v", lease.Key(), err)
			}
			release(t, lease)
		}
	}
}

// unlost ends a bustle through a planned failover that lasted seconds. No key had two holders, and
// the only callers with an error are those that the second without an answer, or the 2 s of a lease
// that was just handed off, has met.
func (c *bustle) unlost() {
	c.Helper()
	c.end()
	if c.mixed > 0 {
		c.Errorf("%d sections held a key together", c.mixed)
	}
	for _, err := range c.errs {
		if !errors.Is(err, locker.ErrUnavailable) && !errors.Is(err, locker.ErrLost) {
			c.Error(err)
		}
	}
	c.Logf("%d calls failed, with ErrUnavailable or ErrLost", len(c.errs))
}

// These are the steps of docs/operations.md, with Sentinel and under load. The replicas are behind
// when the failover begins, so without the pause it would lose leases.
func TestThePlannedFailoverOfTheDocumentsLosesNoLeaseOnSentinel(t *testing.T) {
	t.Parallel()
	var pipe *chaos.Pipe
	set := redistest.StartSentinel(t, func(master string) string {
		pipe = chaos.NewPipe(t, master)
		return pipe.Addr()
	})
	client := set.Client(t)
	ls := []*locker.Engine{newSingle(t, client), newSingle(t, set.Client(t))}
	load := startBustle(t, ls, []string{"a", "b"}, 4, locker.Rule{TTL: 10 * time.Second})
	load.awaitSections()
	pipe.Freeze()
	check := held(t, ls[0], 50)
	master := set.Servers[0].Client(t)
	began := time.Now()
	if err := master.Do(t.Context(), "CLIENT", "PAUSE", "5000", "WRITE").Err(); err != nil {
		t.Fatal(err)
	}
	if caughtUp(t, master) {
		t.Fatal("positive control: the replicas have everything already")
	}
	pipe.Thaw()
	eventually(t, "the replicas have caught up", func() bool { return caughtUp(t, master) })
	if err := set.Sentinels[0].Client(t).Do(t.Context(), "SENTINEL", "FAILOVER", redistest.SentinelName).Err(); err != nil {
		t.Fatal(err)
	}
	promoted := set.Promoted(t).Client(t)
	eventually(t, "the client has changed over", func() bool { return runID(t, client) == runID(t, promoted) })
	load.awaitSections()
	t.Logf("callers went on after %v", time.Since(began).Round(100*time.Millisecond))
	check()
	load.unlost()
}

// FAILOVER of a master without Sentinel: the clients find the new master by a name that leads to
// it.
func TestThePlannedFailoverOfTheDocumentsLosesNoLeaseWithoutSentinel(t *testing.T) {
	t.Parallel()
	before := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(before.Addr())
	if err != nil {
		t.Fatal(err)
	}
	after := redistest.Start(t, "--replicaof", host, port)
	master := before.Client(t)
	eventually(t, "the replica follows", func() bool { return master.Wait(t.Context(), 1, time.Second).Val() == 1 })
	var addr atomic.Value // to which the name of the service leads
	addr.Store(before.Addr())
	client := func() *redis.Client {
		c := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr.Load().(string))
		}})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ls := []*locker.Engine{newSingle(t, client()), newSingle(t, client())}
	load := startBustle(t, ls, []string{"a", "b"}, 4, locker.Rule{TTL: 10 * time.Second})
	check := held(t, ls[0], 50)
	load.awaitSections()
	if err := master.Do(t.Context(), "FAILOVER").Err(); err != nil {
		t.Fatal(err)
	}
	promoted := after.Client(t)
	eventually(t, "the replica is the master", func() bool {
		return promoted.InfoMap(t.Context(), "replication").Item("Replication", "role") == "master"
	})
	addr.Store(after.Addr())
	if err := master.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	load.awaitSections()
	check()
	load.unlost()
}
