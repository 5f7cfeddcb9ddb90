package redisstore_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestAHandOverOnAClusterIsPushed(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"by a sharded channel": nil,
		"by a plain channel":   {"--rename-command", "SSUBSCRIBE", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := redistest.StartCluster(t, args...)
			client := cluster.Client(t)
			var rec lockertest.Recorder
			holds, waits := newSingle(t, client), newSingle(t, cluster.Client(t), locker.WithObserver(&rec))
			const keys = 30 // so many that their slots are on all nodes
			for n := range keys {
				key := fmt.Sprint("pushed ", n)
				holder := acquire(t, holds, locker.Rule{Key: key})
				waiter := queues(t, waits, locker.Rule{Key: key}, client)
				release(t, holder)
				release(t, waiter.Granted(time.Second))
			}
			calls := 0
			for _, r := range rec.Records(locker.OpAcquire) {
				calls += r.Outcome.Calls
			}
			// A waiter needs at most two calls to enter its queue, because there is no subscription
			// at first. In rare cases, it needs another call.
			if calls > 3*keys {
				t.Errorf("%d calls for %d hand-overs", calls, keys)
			}
			lines := 0
			for _, node := range cluster.Masters {
				for info := range strings.SplitSeq(node.Client(t).ClientList(t.Context()).Val(), "\n") {
					if strings.Contains(info, "ssub=") && !strings.Contains(info, " sub=0 psub=0 ssub=0 ") {
						lines++
					}
				}
			}
			if lines != len(cluster.Masters) {
				t.Errorf("%d connections listen, want one for each node", lines)
			}
		})
	}
}

func TestALineThatIsCutIsReplaced(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client(t)
	const key = "cut"
	node, _ := cluster.Owner(int(redisstore.SlotOf(key)))
	holder := acquire(t, newSingle(t, client), locker.Rule{Key: key})
	waits := newSingle(t, cluster.Client(t))
	waiter := queues(t, waits, locker.Rule{Key: key}, client)
	direct := node.Client(t)
	listens := func() bool { return listenersIn(t, node, key) == 1 }
	for range 3 {
		eventually(t, "it listens", listens)
		// The server may list the channel of a line that it is about to free.
		eventually(t, "a line is cut", func() bool {
			return direct.ClientKillByFilter(t.Context(), "TYPE", "pubsub").Val() == 1
		})
	}
	eventually(t, "it listens again", listens)
	release(t, holder)
	release(t, waiter.Granted(5*time.Second))
}

// A line (the connection to a node) may break when the node has just confirmed a channel,
// before the subscribing caller has seen the confirmation. Then two attempts to open that
// channel are under way. Each caller must end only its own attempt, exactly once.
func TestLinesThatBreakWhileChannelsAreOpenedStrandNobody(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	n := store.CapabilitiesOf(locktest.SingleStore(cluster.Client(t))).Notifier
	defer n.Listen(func(store.Event) {})()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 40 {
				name, err := n.Open(ctx, fmt.Sprint("key", w, i))
				if ctx.Err() != nil {
					t.Errorf("an attempt that does not end: %v", err)
					return
				}
				if err == nil {
					n.Reset(name)
				}
			}
		})
	}
	wg.Wait()
}

func TestAChannelThatNobodyUsesIsLeft(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client(t)
	backend := locktest.SingleStore(cluster.Client(t))
	redisstore.DelayLeaving(backend, 4*time.Second)
	waits := lockertest.NewLocker(t, backend)
	holds := newSingle(t, client)
	used, left := "used", "left{"+"used"+"}x" // two keys in different slots, so that they have different channels
	for n := 0; redisstore.SlotOf(left) == redisstore.SlotOf(used) || !sameNode(cluster, left, used); n++ {
		left = fmt.Sprint("left ", n)
	}
	node, _ := cluster.Owner(int(redisstore.SlotOf(used)))
	holder := acquire(t, holds, locker.Rule{Key: used})
	waiter := queues(t, waits, locker.Rule{Key: used, TTL: 2 * time.Second}, client) // so it asks each second
	gone := acquire(t, holds, locker.Rule{Key: left})
	once := queues(t, waits, locker.Rule{Key: left}, client)
	release(t, gone)
	release(t, once.Granted(5*time.Second))
	eventually(t, "no process listens for it", func() bool { return listenersIn(t, node, left) == 0 })
	if listenersIn(t, node, used) != 1 {
		t.Error("the channel of a waiter was unsubscribed")
	}
	release(t, holder)
	release(t, waiter.Granted(5*time.Second))

	gone = acquire(t, holds, locker.Rule{Key: left}) // positive control: the key can be acquired again
	once = queues(t, waits, locker.Rule{Key: left}, client)
	if listenersIn(t, node, left) != 1 {
		t.Error("a new waiter there has no subscription")
	}
	release(t, gone)
	release(t, once.Granted(5*time.Second))
	eventually(t, "no connection is left", func() bool { return len(subscribers(t, node.Client(t))) == 0 })
}

func sameNode(c *redistest.Cluster, a, b string) bool {
	_, i := c.Owner(int(redisstore.SlotOf(a)))
	_, k := c.Owner(int(redisstore.SlotOf(b)))
	return i == k
}

func TestWhoMayNotListenOnAClusterWaitsAllTheSame(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for _, node := range append(cluster.Masters, cluster.Replicas...) {
		if err := node.Client(t).Do(t.Context(), "acl", "setuser", "mute", "on", "nopass", "~*", "+@all", "resetchannels").Err(); err != nil {
			t.Fatal(err)
		}
	}
	client := cluster.Client(t)
	mute := newSingle(t, cluster.Client(t, func(o *redis.ClusterOptions) { o.Username, o.Password = "mute", "x" }))
	holder := acquire(t, newSingle(t, client), locker.Rule{Key: "a"})
	waiter := queues(t, mute, locker.Rule{Key: "a"}, client)
	release(t, holder)
	release(t, waiter.Granted(5*time.Second))
}
