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
