package redisstore_test

import (
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

func TestTheQueueIsServedInOrder(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	holder := l.newHolder()
	var ears []*listener
	var claims []store.Claim
	for i := range 5 {
		ears = append(ears, l.listen())
		claims = append(claims, l.claim(ears[i].name))
		if g := l.acquire(claims[i], store.Busy); g.Place != i+1 || g.NotListening || g.At.IsZero() || g.Holder.Left <= 0 {
			t.Fatalf("%+v, want place %d", g, i+1)
		}
	}
	for i, c := range claims { // a repetition keeps the place
		if g := l.acquire(c, store.Busy); g.Place != i+1 {
			t.Fatalf("%+v, want place %d", g, i+1)
		}
	}
	var last uint64
	for i, c := range claims {
		before := time.Now()
		l.release(holder, store.Released)
		l.wantHolder(c)
		e := ears[i].wantGranted(c)
		text := l.server.Get(t.Context(), l.key).Val()
		if text != fmt.Sprintf("%s:%d:%d:", c.Owner, e.Fence, e.FenceCount) || e.Fence <= last || e.FenceCount != 1 || e.HandoffTTL != handedTTL {
			t.Fatalf("event %+v, and the lease is %q", e, text)
		}
		if e.At.Before(before.Add(-time.Second)) || e.At.After(time.Now().Add(time.Second)) {
			t.Fatalf("granted at %v, now it is %v", e.At, before)
		}
		if left := l.server.PTTL(t.Context(), l.key).Val(); left <= handedTTL/2 || left > handedTTL {
			t.Fatalf("the lease lives for %v, want %v", left, handedTTL)
		}
		last, holder = e.Fence, c
	}
	l.release(holder, store.Released)
	if l.holder() != "" || len(l.queuedTokens()) != 0 {
		t.Fatalf("%s holds the key, %v wait", l.holder(), l.queuedTokens())
	}
}

func TestTheOrderSurvivesAClockThatStepsBack(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	holder := l.newHolder()
	first := l.newWaiter("")
	l.ageQueue(-time.Hour) // now the ticket of the waiter first is an hour later than the clock
	second, third := l.newWaiter(""), l.newWaiter("")
	l.wantQueued(first.Owner, second.Owner, third.Owner)
	l.release(holder, store.Released)
	l.release(first, store.Released)
	l.wantHolder(second)
	l.release(second, store.Released)
	l.wantHolder(third)
	fourth := l.newWaiter("") // this waiter queues behind a waiter that was handed the key
	l.wantQueued("-"+third.Owner, fourth.Owner)
}

func TestNobodyOvertakesTheQueue(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	holder := l.newHolder()
	listener := l.listen()
	first := l.newWaiter(listener.name)
	if g := l.acquire(store.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute}, store.Busy); g.Place != 2 {
		t.Fatalf("an acquire that does not queue would have place %d, want 2", g.Place)
	}
	l.server.Del(t.Context(), l.key) // as if the lease had expired
	g := l.acquire(store.Claim{Key: l.key, Owner: rand.Text(), TTL: time.Minute}, store.Busy)
	if g.Place != 1 || g.Holder.Fence == 0 || g.Holder.Left > handedTTL {
		t.Fatalf("%+v, want the first waiter as the holder", g)
	}
	l.wantHolder(first)
	listener.wantGranted(first)
	l.release(first, store.Released)
	l.release(holder, store.NotOurs)

	l.newHolder()
	first = l.newWaiter(listener.name)
	l.server.Del(t.Context(), l.key)
	second := l.claim("")
	if g := l.acquire(second, store.Busy); g.Place != 1 || g.NotListening {
		t.Fatalf("%+v", g)
	}
	l.wantHolder(first)
	l.wantQueued("-"+first.Owner, second.Owner)
	listener.wantGranted(first)
	l.release(first, store.Released)
	l.wantHolder(second)
	l.release(second, store.Released)
	l.wantQueued()
}

func TestWhoQueuesAndFindsTheKeyFreeGetsIt(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	listener := l.listen()
	c := l.claim(listener.name)
	first := l.acquire(c, store.Granted)
	if again := l.acquire(c, store.Granted); again.Fence != first.Fence || again.FenceCount != first.FenceCount {
		t.Fatalf("fence %d became %d", first.Fence, again.Fence)
	}
	l.wantQueued()
	waiter := l.newWaiter(listener.name)
	l.server.Del(t.Context(), l.key) // as if the holder had died and its lease had expired; then the waiter asks again
	l.acquire(waiter, store.Granted)
	l.wantQueued()
	listener.wantSilence()
	if left := l.server.PTTL(t.Context(), l.key).Val(); left <= handedTTL {
		t.Fatalf("the lease lives for %v: it was not handed over, but taken", left)
	}
}

func TestTheDeadAreSkippedAtOnceWithAllTheirEntries(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	dead, listener := l.listen(), l.listen()
	holder := l.newHolder()
	l.newWaiter(dead.name)
	alive := l.newWaiter(listener.name)
	l.newWaiter(dead.name)
	poller := l.newWaiter("")
	l.newWaiter(dead.name)

	// A subscriber to all channels does not count as the subscriber of an inbox.
	monitor := l.server.PSubscribe(t.Context(), "*")
	defer monitor.Close()
	if _, err := monitor.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	dead.sub.Close()
	eventually(t, "the server knows that it is dead", func() bool {
		return l.server.PubSubNumSub(t.Context(), dead.name).Val()[dead.name] == 0
	})

	l.release(holder, store.Released)
	l.wantHolder(alive)
	listener.wantGranted(alive)
	l.wantQueued("-"+alive.Owner, poller.Owner)

	// When all waiters are dead, a newcomer is served.
	l.release(poller, store.NotOurs)
	listener.sub.Close()
	eventually(t, "the server knows that it is dead", func() bool {
		return l.server.PubSubNumSub(t.Context(), listener.name).Val()[listener.name] == 0
	})
	l.server.Del(t.Context(), l.key)
	l.newHolder()
	l.wantQueued()
}

func TestAQueueIsForgottenWhenNobodyAsks(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	l.newHolder()
	c := l.newWaiter("")
	q := redisstore.QueueKey(l.key)
	for range 2 {
		if ttl := l.server.PTTL(t.Context(), q).Val(); ttl < 50*time.Second || ttl > time.Minute {
			t.Fatalf("the queue lives for %v", ttl)
		}
		l.server.PExpire(t.Context(), q, 5*time.Second)
		l.acquire(c, store.Busy) // a repetition keeps the entry alive
	}
	l.server.PExpire(t.Context(), q, time.Millisecond)
	eventually(t, "it is gone", func() bool { return l.server.Exists(t.Context(), q).Val() == 0 })
	if g := l.acquire(c, store.Busy); g.Place != 1 {
		t.Fatalf("%+v", g)
	}
}

func TestAnythingFitsIntoMetadata(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	for _, text := range []string{"a|b|c", "|", "with spaces: and colons ::", "\x00\xff\n", "1|2|3|4|5|6|7|8", "{ü}", " "} {
		listener := l.listen()
		holder := l.newHolder()
		c := l.claim(listener.name)
		c.Metadata, c.FenceCount = text, 2
		l.acquire(c, store.Busy)
		l.release(holder, store.Released)
		e := listener.wantGranted(c)
		if h := l.acquire(l.claim(""), store.Busy).Holder; h.Metadata != text || h.Fence != e.Fence || e.FenceCount != 2 {
			t.Fatalf("%q became %+v", text, h)
		}
		l.server.Del(t.Context(), l.key, redisstore.QueueKey(l.key))
		l.acquire(c, store.Granted)
		if h := l.acquire(l.claim(""), store.Busy).Holder; h.Metadata != text {
			t.Fatalf("%q became %+v", text, h)
		}
		l.server.Del(t.Context(), l.key, redisstore.QueueKey(l.key))
	}
}

func TestTheServerSaysThatNobodyListens(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	l.newHolder()
	listener := l.listen()
	for inbox, unsubscribed := range map[string]bool{listener.name: false, "latchkit:i:nobody": true, "": false} {
		c := l.claim(inbox)
		if g := l.acquire(c, store.Busy); g.NotListening != unsubscribed {
			t.Errorf("%q: %+v", inbox, g)
		}
		c.Owner, c.Queue = rand.Text(), false
		if g := l.acquire(c, store.Busy); g.NotListening {
			t.Errorf("NotListening for an acquire that does not queue: %+v", g)
		}
	}
}

// A call must not shorten a lease that another call has lengthened, because the holder relies on
// the longer time.
func TestARepeatedAcquireDoesNotShortenALease(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	holder := l.newHolder()
	longer := holder
	longer.TTL = time.Hour
	l.renew(longer, store.Granted)
	l.acquire(holder, store.Granted)
	if left := l.server.PTTL(t.Context(), l.key).Val(); left < 50*time.Minute {
		t.Fatalf("%v left", left)
	}
}
