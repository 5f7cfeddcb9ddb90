package storetest

import (
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// notifyLaws concern the events that a waiting process receives.
var notifyLaws = []law{
	{name: "the message of a grant has fence, block and time, and comes once", needs: allOf(notifies, mintsFences), check: func(b *bench) {
		at := b.listen(b.Store)
		holder, before := b.newHolder()
		first, second := b.waiter(at.inbox), b.waiter(at.inbox)
		first.FenceCount = 3
		b.queue(first)
		b.queue(second)
		b.free(holder)
		event := at.expectGrant(first)
		after := b.acquireSoon(first, "acquire by the notified waiter")
		if event.Fence != after.Fence || event.FenceCount != after.FenceCount {
			b.Fatalf("the message has fence %d and block %d, the lease has %d and %d", event.Fence, event.FenceCount, after.Fence, after.FenceCount)
		}
		if event.HandoffTTL != first.HandoffTTL {
			b.Fatalf("the message has a lease of %v, want %v", event.HandoffTTL, first.HandoffTTL)
		}
		if event.At.Before(before.At) || event.At.After(after.At) {
			b.Fatalf("granted at %v, by the same clock after %v and before %v", event.At, before.At, after.At)
		}
		b.free(first)
		at.expectGrant(second) // checks the next event, so no other event may come before
	}},
	{name: "the message of a grant comes to the waiter's own inbox", needs: allOf(notifies, hasProcesses), check: func(b *bench) {
		one, other := b.listen(b.Store), b.listen(b.Another(b.TB))
		if one.inbox == other.inbox {
			b.Fatalf("two processes have the inbox %q", one.inbox)
		}
		holder, _ := b.newHolder()
		for _, at := range []*mail{other, one, one, other, one} {
			w := b.newWaiter(at.inbox)
			b.free(holder)
			at.expectGrant(w)
			b.checkHolds(w, "renewal by the notified waiter")
			holder = w
		}
	}},
	{name: "the next waiter is notified when the claim before it ends", needs: allOf(notifies, hasProcesses), check: func(b *bench) {
		one, other := b.listen(b.Store), b.listen(b.Another(b.TB))
		holder, _ := b.newHolder()
		first := b.newWaiter(one.inbox)
		// This waiter belongs to the same process as the first waiter. If that process does not
		// react, this waiter does not react either.
		b.newWaiter(one.inbox)
		third := b.newWaiter(other.inbox)
		// A waiter that has just come asks again by itself, so it is not notified.
		b.sleep(700 * time.Millisecond)
		b.free(holder)
		one.expectGrant(first)
		other.expectHead(third, first.HandoffTTL)
		b.checkHolds(first, "renewal by the notified waiter")
	}},
	{name: "the first waiter is notified how long a key is kept", needs: allOf(notifies, atLeast), check: func(b *bench) {
		at := b.listen(b.Store)
		holder, _ := b.newHolder()
		first := b.newWaiter(at.inbox)
		b.newWaiter(at.inbox)
		holder.KeepFor = blink
		b.free(holder)
		at.expectHead(first, blink)
	}},
	{name: "waiters with OnceFor are notified that the work is done, the others wait on", needs: allOf(notifies, marksDone), check: func(b *bench) {
		at := b.listen(b.Store)
		holder := b.claim(owner())
		holder.OnceFor = ttl
		b.acquireSoon(holder, "acquire with OnceFor")
		first, third := b.waiter(at.inbox), b.waiter(at.inbox)
		first.OnceFor, third.OnceFor = ttl, ttl
		b.queue(first)
		second := b.newWaiter(at.inbox)
		b.queue(third)
		holder.Complete = true
		b.free(holder)
		event := map[string]store.EventKind{}
		for range 3 {
			e := at.nextEvent("the news of work that is done, and of a grant")
			event[e.Owner] = e.Kind
		}
		if event[first.Owner] != store.EventDone || event[third.Owner] != store.EventDone {
			b.Fatal("a waiter with OnceFor was not notified that the work is done")
		}
		if event[second.Owner] != store.EventGranted {
			b.Fatal("a waiter without OnceFor was not notified of its grant")
		}
		b.free(second)
		b.newHolder()
	}},
	{name: "after a failure a waiter with OnceFor is granted the key", needs: allOf(notifies, marksDone), check: func(b *bench) {
		at := b.listen(b.Store)
		holder := b.claim(owner())
		holder.OnceFor = ttl
		b.acquireSoon(holder, "acquire with OnceFor")
		first := b.waiter(at.inbox)
		first.OnceFor = ttl
		b.queue(first)
		b.free(holder)
		at.expectGrant(first)
	}},
	{name: "an inbox that is subscribed again sends EventReopened, and receives events again", needs: notifies, check: func(b *bench) {
		at := b.listen(b.Store)
		holder, _ := b.newHolder()
		store.CapabilitiesOf(b.Store).Notifier.Reset(at.inbox)
		at.expectReopened()
		first := b.newWaiter(at.inbox)
		b.free(holder)
		at.expectGrant(first)
	}},
	{name: "a lost subscription is noticed, and a new subscription works", needs: allOf(notifies, losesSubscriptions), check: func(b *bench) {
		at := b.listen(b.Store)
		holder, _ := b.newHolder()
		first := b.waiter(at.inbox)
		b.Deafen(b.TB, b.Store)
		b.eventually(10*time.Second, "the answer says that no process listens", func() bool { return b.queue(first).NotListening })
		store.CapabilitiesOf(b.Store).Notifier.Reset(at.inbox)
		at.expectReopened()
		if g := b.queue(first); g.NotListening {
			b.Fatal("NotListening after a new subscription")
		}
		b.free(holder)
		at.expectGrant(first)
	}},
}

// mail receives the events of one process.
type mail struct {
	b        *bench
	inbox    string
	events   chan store.Event
	reopened chan struct{}
}

// listen opens the inbox of the process of s.
func (b *bench) listen(s store.Store) *mail {
	b.Helper()
	n := store.CapabilitiesOf(s).Notifier
	if n == nil {
		b.Fatal("the Harness says Notify, but the Store has no Notifier")
	}
	m := &mail{b: b, events: make(chan store.Event, 100), reopened: make(chan struct{}, 100)}
	b.Cleanup(n.Listen(func(e store.Event) {
		switch {
		case e.Kind == store.EventReopened:
			m.reopened <- struct{}{}
		case e.Kind == store.EventFree: // only a hint for waiters without a queue, so it is dropped
		case e.Key == b.key:
			m.events <- e
		default:
			b.Errorf("an event of key %q", e.Key)
		}
	}))
	var err error
	if m.inbox, err = n.Open(b.Context(), b.key); err != nil {
		b.Fatalf("open: %v", err)
	}
	if m.inbox == "" || m.inbox != n.Inbox(b.key) {
		b.Fatalf("opened the inbox %q, and it is %q", m.inbox, n.Inbox(b.key))
	}
	return m
}

// nextEvent waits for an event, and returns it. The parameter desc describes the expected event in
// a failure.
func (m *mail) nextEvent(desc string) store.Event {
	m.b.Helper()
	select {
	case e := <-m.events:
		return e
	case <-time.After(10 * time.Second):
		m.b.Fatalf("no event within 10s: %s", desc)
		panic("unreachable")
	}
}

// expectGrant waits for the next event, which must be the grant for c, and returns it.
func (m *mail) expectGrant(c store.Claim) store.Event {
	m.b.Helper()
	e := m.nextEvent("the grant")
	if e.Kind != store.EventGranted || e.Owner != c.Owner {
		m.b.Fatalf("%v, want a grant for the first waiter", e)
	}
	return e
}

// expectWriter waits for the event EventWriter for c: a writer waits for the end of c's phase.
func (m *mail) expectWriter(c store.Claim) {
	m.b.Helper()
	if e := m.nextEvent("a writer"); e.Kind != store.EventWriter || e.Owner != c.Owner {
		m.b.Fatalf("event %v, want EventWriter", e)
	}
}

// expectHead waits for the event EventHead for c, which is then the first in the queue. The
// parameter freeIn is the expected time until the key is free.
func (m *mail) expectHead(c store.Claim, freeIn time.Duration) {
	m.b.Helper()
	e := m.nextEvent("the event for the head of the queue")
	if e.Kind != store.EventHead || e.Owner != c.Owner {
		m.b.Fatalf("%v, want an event for the first waiter", e)
	}
	if e.HandoffTTL != freeIn {
		m.b.Fatalf("the message has the key free in %v, want %v", e.HandoffTTL, freeIn)
	}
}

// expectReopened waits for the event EventReopened.
func (m *mail) expectReopened() {
	m.b.Helper()
	select {
	case <-m.reopened:
	case <-time.After(10 * time.Second):
		m.b.Fatal("no EventReopened within 10s")
	}
}
