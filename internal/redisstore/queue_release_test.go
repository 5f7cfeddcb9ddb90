package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

func TestWorkThatIsDoneEndsTheWaitOfWhoAskedForOnce(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	listener := l.listen()
	holder := l.claim(listener.name)
	holder.OnceFor = time.Minute
	l.acquire(holder, store.Granted)
	var once []store.Claim
	var other store.Claim
	for i := range 4 {
		if i == 2 {
			other = l.newWaiter(listener.name)
		}
		c := l.claim(listener.name)
		if c.OnceFor = time.Minute; i == 3 {
			c.Inbox = ""
		}
		l.acquire(c, store.Busy)
		once = append(once, c)
	}
	holder.Complete = true
	l.release(holder, store.Released)
	for _, c := range once[:3] {
		if e, ok := redisstore.ParseEvent(listener.nextMessage()); !ok || e != (store.Event{Kind: store.EventDone, Key: l.key, Owner: c.Owner}) {
			t.Fatalf("event %#v, want that the work of %s is done", e, c.Owner)
		}
	}
	listener.wantGranted(other)
	listener.wantSilence()
	l.wantQueued("-" + other.Owner)
	for _, c := range once {
		l.acquire(c, store.Done)
	}
	l.wantQueued("-" + other.Owner)
}

func TestAKeptKeyIsAnnouncedToTheHead(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	dead, listener := l.listen(), l.listen()
	holder := l.claim("")
	l.acquire(holder, store.Granted)
	l.newWaiter(dead.name)
	head := l.newWaiter(listener.name)
	l.newWaiter(listener.name)
	dead.sub.Close()
	eventually(t, "the server knows that it is dead", func() bool {
		return l.server.PubSubNumSub(t.Context(), dead.name).Val()[dead.name] == 0
	})
	holder.KeepFor = 5 * time.Second
	l.release(holder, store.Released)
	want := fmt.Sprintf("head 5000 %s %s", head.Owner, l.key)
	if got := listener.nextMessage(); got != want {
		t.Fatalf("message %q, want %q", got, want)
	}
	listener.wantSilence()
	if l.holder() != "kept" || len(l.queuedTokens()) != 3 {
		t.Fatalf("%s holds the key, and %v wait", l.holder(), l.queuedTokens())
	}
	if g := l.acquire(head, store.Busy); g.Holder.Left > 5*time.Second || g.Holder.Foreign {
		t.Fatalf("%+v", g)
	}
	// Revoke ends the time for which KeepFor keeps a released key. Then the server hands the key
	// to the next waiter.
	i, err := store.CapabilitiesOf(l.store).Inspect(t.Context(), l.key)
	if err != nil || !i.Kept || i.Waiters != 3 {
		t.Fatalf("%+v %v", i, err)
	}
	if g, err := store.CapabilitiesOf(l.store).Revoke(t.Context(), l.key, i.Fence, "drill"); err != nil || g.State != store.Released {
		t.Fatal(g, err)
	}
	listener.wantGranted(head)
}

func TestABrokenKeyIsHandedOn(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	listener := l.listen()
	holder := l.newHolder()
	first, second := l.newWaiter(listener.name), l.newWaiter(listener.name)
	inspector, breaker := store.CapabilitiesOf(l.store), store.CapabilitiesOf(l.store)
	i, err := inspector.Inspect(t.Context(), l.key)
	if err != nil || i.Waiters != 2 {
		t.Fatalf("%+v %v", i, err)
	}
	for n, want := range []store.State{store.Released, store.NotOurs} { // a repetition affects no other owner
		if g, err := breaker.Revoke(t.Context(), l.key, i.Fence, "drill"); err != nil || g.State != want {
			t.Fatal(n, g, err)
		}
		l.wantHolder(first)
		listener.wantGrantedOrNothing(n == 0, first)
	}
	l.release(holder, store.Revoked)
	// If the revoked holder got the key by hand-off and has not confirmed the hand-off yet, the
	// key is handed on, too. The process of this holder did nothing wrong, and loses no place.
	if i, err = inspector.Inspect(t.Context(), l.key); err != nil || i.Waiters != 1 {
		t.Fatalf("%+v %v, want one waiter: the owner that was handed the key does not wait any more", i, err)
	}
	if g, err := breaker.Revoke(t.Context(), l.key, i.Fence, "drill"); err != nil || g.State != store.Released {
		t.Fatal(g, err)
	}
	listener.wantGranted(second)
	l.wantQueued("-" + second.Owner)
	if g := l.release(first, store.Revoked); g.Reason != "drill" {
		t.Fatalf("%+v", g)
	}
}

// An owner whose lease was revoked gets "revoked" each time it asks, even after it has undone an
// acquire without a reply.
func TestAnUndoDoesNotHideARevocation(t *testing.T) {
	t.Parallel()
	l := sharedLine(t)
	c := l.newHolder()
	i, err := store.CapabilitiesOf(l.store).Inspect(t.Context(), l.key)
	if err != nil {
		t.Fatal(err)
	}
	if g, err := store.CapabilitiesOf(l.store).Revoke(t.Context(), l.key, i.Fence, "drill"); err != nil || g.State != store.Released {
		t.Fatal(g, err)
	}
	c.TombstoneTTL = time.Minute
	for range 2 {
		if g := l.release(c, store.Revoked); g.Reason != "drill" {
			t.Fatalf("%+v", g)
		}
	}
}
