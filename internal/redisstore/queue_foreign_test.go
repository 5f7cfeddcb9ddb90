package redisstore_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// A waiter keeps its place when another program, which does not use the queue, deletes and sets
// the key.
func TestAForeignHolderBetweenDoesNotCostThePlace(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	listener := l.listen()
	holder := l.newHolder()
	first, second := l.newWaiter(listener.name), l.newWaiter("")
	l.release(holder, store.Released)
	listener.wantGranted(first)
	l.server.Set(t.Context(), l.key, "foreign", time.Minute)
	if g := l.acquire(second, store.Busy); g.Place != 1 || !g.Holder.Foreign {
		t.Fatalf("%+v", g)
	}
	if g := l.acquire(first, store.Busy); g.Place != 1 {
		t.Fatalf("%+v", g)
	}
	l.wantQueued(first.Owner, second.Owner)
	l.server.Del(t.Context(), l.key)
	l.acquire(second, store.Busy)
	listener.wantGranted(first)
	l.wantQueued("-"+first.Owner, second.Owner)
	l.release(first, store.Released)
	l.wantHolder(second)
	l.wantQueued("-" + second.Owner)
	listener.wantSilence() // the key is not handed to the waiter first again
}

// Here the waiters belong to Engines. The waiter at the head gets the key once, and then the
// waiters behind it get the key.
func TestAForeignHolderBetweenDoesNotMakeAGrantRepeat(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	holder := acquire(t, newSingle(t, client), locker.Rule{Key: "a"})
	rule := locker.Rule{Key: "a", EndAfter: time.Minute} // with EndAfter the lease is not renewed, so only its release confirms it
	first := queues(t, newSingle(t, server.Client(t)), rule, client)
	second := queues(t, newSingle(t, server.Client(t)), rule, client)
	q := redisstore.QueueKey("a")
	entry := client.ZRange(t.Context(), q, 0, 0).Val()[0]
	for _, score := range []float64{-1, 0} { // two forms of the first waiter's entry: the key was handed to the waiter without a confirmation, or an older version wrote the entry
		client.ZAdd(t.Context(), q, redis.Z{Score: score, Member: entry})
		if score < 0 {
			_, err := newSingle(t, server.Client(t)).Acquire(t.Context(), locker.Rule{Key: "a", Wait: locker.NoWait})
			wantErr(t, err, "a", locker.ErrBusy)
		}
	}
	release(t, holder)
	release(t, first.Granted(0))
	release(t, second.Granted(0))
	nothingLeftBut(t, client)
}

// If a member of a queue does not have the form of an entry, it is removed, and no waiter is
// affected.
func TestWhatIsNoEntryIsDropped(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	listener := l.listen()
	holder := l.newHolder()
	q := redisstore.QueueKey(l.key)
	for i, junk := range []string{"", "junk", "T|inbox|0|0|1|0|", "T|-|x|0|1|0|", "T|-|5|0|0|0|", "|-|5|0|1|0|"} {
		l.server.ZAdd(t.Context(), q, redis.Z{Score: float64(i), Member: junk})
	}
	c := l.newWaiter(listener.name)
	l.release(holder, store.Released)
	listener.wantGranted(c)
	l.wantQueued("-" + c.Owner)
}
