package locker_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestTheSkewOfServersThatTakeOverIsLeftOut(t *testing.T) {
	t.Parallel()
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	sentinel := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "locks", SentinelAddrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { _, _ = cluster.Close(), sentinel.Close() })
	plain := redistest.Shared(t).Client(t)
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		client    locker.Client
		opts      []locker.SingleOption
		ttl, want time.Duration
	}{
		"one server":                {plain, nil, 10 * time.Second, 102 * ms},
		"one server with a skew":    {plain, []locker.SingleOption{locker.WithMaxSkew(200 * ms)}, 10 * time.Second, 302 * ms},
		"Sentinel":                  {sentinel, nil, 10 * time.Second, 602 * ms},
		"Sentinel, a short lease":   {sentinel, nil, time.Second, 262 * ms},
		"Sentinel without any skew": {sentinel, []locker.SingleOption{locker.WithMaxSkew(0)}, 10 * time.Second, 102 * ms},
		"Cluster":                   {cluster, nil, 10 * time.Second, 602 * ms},
		"Cluster with a larger one": {cluster, []locker.SingleOption{locker.WithMaxSkew(time.Second)}, 10 * time.Second, 1102 * ms},
	} {
		if got := locker.DriftOf(newSingle(t, c.client, c.opts...), c.ttl); got != c.want {
			t.Errorf("%s: %v of %v is left out, want %v", name, got, c.ttl, c.want)
		}
	}
	if _, err := locker.New(plain, locker.WithMaxSkew(-1)); err == nil || !strings.Contains(err.Error(), "WithMaxSkew") {
		t.Error(err)
	}
}

func TestTheSkewIsLeftOutOfEveryDeadline(t *testing.T) {
	t.Parallel()
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		const ttl, skew = 10 * time.Second, 300 * time.Millisecond
		want := func(what string, l *locker.Lease, start time.Time, life time.Duration) {
			t.Helper()
			deadline := start.Add(life - life/100 - 2*time.Millisecond - skew)
			if got := l.Expires(); got.After(deadline) || got.Before(deadline.Add(-200*time.Millisecond)) {
				t.Errorf("%s: it ends %v after %v, want %v", what, got.Sub(start), start, deadline.Sub(start))
			}
		}
		ls, _ := processes(t, store, 2, locker.WithMaxSkew(skew))
		start := time.Now()
		lease := acquire(t, ls[0], locker.Rule{Key: "a", TTL: ttl})
		want("granted", lease, start, ttl)
		w := startWaiting(t, ls[1], locker.Rule{Key: "a", TTL: ttl})
		start = time.Now()
		if err := lease.Extend(t.Context(), time.Minute); err != nil {
			t.Fatal(err)
		}
		want("extended", lease, start, time.Minute)
		start = time.Now()
		release(t, lease)
		winner := w.awaitGrant(time.Second)
		want("told by message", winner, start, 2*time.Second)
		time.Sleep(time.Second) //nolint:forbidigo // in the bubble; in this time the first renewal is made
		synctest.Wait()
		want("renewed", winner, start.Add(250*time.Millisecond), ttl)
		release(t, winner)
	})
}
