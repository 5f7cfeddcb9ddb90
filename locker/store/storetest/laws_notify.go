package storetest

import (
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

// notifyLaws concern the events that a waiting process receives.
var notifyLaws = []law{
	{name: "the message of a grant has fence, block and time, and comes once", needs: all(notifies, fence), check: func(b *bench) {
		at := b.listen(b.Store)
		holder, before := b.granted()
		first, second := b.waiter(at.inbox), b.waiter(at.inbox)
		first.FenceCount = 3
		b.queue(first)
		b.queue(second)
		b.free(holder)
		event := at.granted(first)
		after := b.gets(first, "acquire by the notified waiter")
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
		at.granted(second) // checks the next event, so no other event may come before
	}},
	{name: "the message of a grant comes to the waiter's own inbox", needs: all(notifies, several), check: func(b *bench) {
		one, other := b.listen(b.Store), b.listen(b.Another(b.TB))
		if one.inbox == other.inbox {
			b.Fatalf("two processes have the inbox %q", one.inbox)
		}
		holder, _ := b.granted()
		for _, at := range []*mail{other, one, one, other, one} {
			w := b.queued(at.inbox)
			b.free(holder)
			at.granted(w)
			b.owns(w, "renewal by the notified waiter")
			holder = w
		}
	}},
	{name: "the next waiter is notified when the claim before it ends", needs: all(notifies, several), check: func(b *bench) {
		one, other := b.listen(b.Store), b.listen(b.Another(b.TB))
		holder, _ := b.granted()
		first := b.queued(one.inbox)
		// This waiter belongs to the same process as the first waiter. If that process does not
		// react, this waiter does not react either.
		b.queued(one.inbox)
		third := b.queued(other.inbox)
		// A waiter that has just come asks again by itself, so it is not notified.
		b.pass(700 * time.Millisecond)
		b.free(holder)
		one.granted(first)
		other.head(third, first.HandoffTTL)
		b.owns(first, "renewal by the notified waiter")
	}},
	{name: "the first waiter is notified how long a key is kept", needs: all(notifies, atLeast), check: func(b *bench) {
		at := b.listen(b.Store)
		holder, _ := b.granted()
		first := b.queued(at.inbox)
		b.queued(at.inbox)
		holder.KeepFor = blink
		b.free(holder)
		at.head(first, blink)
	}},
	{name: "waiters with Once are notified that the work is done, the others wait on", needs: all(notifies, once), check: func(b *bench) {
		at := b.listen(b.Store)
		holder := b.claim(owner())
		holder.Once = ttl
		b.gets(holder, "acquire with Once")
		first, third := b.waiter(at.inbox), b.waiter(at.inbox)
		first.Once, third.Once = ttl, ttl
		b.queue(first)
		second := b.queued(at.inbox)
		b.queue(third)
		holder.Complete = true
		b.free(holder)
		event := map[string]store.EventKind{}
		for range 3 {
			e := at.next("the news of work that is done, and of a grant")
			event[e.Owner] = e.Kind
		}
		if event[first.Owner] != store.EventDone || event[third.Owner] != store.EventDone {
			b.Fatal("a waiter with Once was not notified that the work is done")
		}
		if event[second.Owner] != store.EventGranted {
			b.Fatal("a waiter without Once was not notified of its grant")
		}
		b.free(second)
		b.granted()
	}},
	{name: "after a failure a waiter with Once is granted the key", needs: all(notifies, once), check: func(b *bench) {
		at := b.listen(b.Store)
		holder := b.claim(owner())
		holder.Once = ttl
		b.gets(holder, "acquire with Once")
		first := b.waiter(at.inbox)
		first.Once = ttl
		b.queue(first)
		b.free(holder)
		at.granted(first)
	}},
	{name: "an inbox that is subscribed again sends EventReopened, and receives events again", needs: notifies, check: func(b *bench) {
		at := b.listen(b.Store)
		holder, _ := b.granted()
		b.Store.(store.Notifier).Reset(at.inbox)
		at.reopens()
		first := b.queued(at.inbox)
		b.free(holder)
		at.granted(first)
	}},
	{name: "a lost subscription is noticed, and a new subscription works", needs: all(notifies, losesSubscriptions), check: func(b *bench) {
		at := b.listen(b.Store)
		holder, _ := b.granted()
		first := b.waiter(at.inbox)
		b.Deafen(b.TB, b.Store)
		b.eventually(10*time.Second, "the answer says that no process listens", func() bool { return b.queue(first).NotListening })
		b.Store.(store.Notifier).Reset(at.inbox)
		at.reopens()
		if g := b.queue(first); g.NotListening {
			b.Fatal("NotListening after a new subscription")
		}
		b.free(holder)
		at.granted(first)
	}},
}

// mail receives the events of one process.
type mail struct {
	b        *bench
	inbox    string
	events   chan store.Event
	reopened chan struct{}
}

// listen opens a process's inbox.
func (b *bench) listen(s locker.Store) *mail {
	b.Helper()
	n, ok := s.(store.Notifier)
	if !ok {
		b.Fatal("the Harness says Notify, but the Store is no Notifier")
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

// next awaits an event.
func (m *mail) next(what string) store.Event {
	m.b.Helper()
	select {
	case e := <-m.events:
		return e
	case <-time.After(10 * time.Second):
		m.b.Fatalf("no event within 10s: %s", what)
		panic("unreachable")
	}
}

// granted waits for the next event, which must be the grant for c.
func (m *mail) granted(c store.Claim) store.Event {
	m.b.Helper()
	e := m.next("the grant")
	if e.Kind != store.EventGranted || e.Owner != c.Owner {
		m.b.Fatalf("%v, want a grant for the first waiter", e)
	}
	return e
}

// writer waits for the event EventWriter for c: a writer waits for the end of c's phase.
func (m *mail) writer(c store.Claim) {
	m.b.Helper()
	if e := m.next("a writer"); e.Kind != store.EventWriter || e.Owner != c.Owner {
		m.b.Fatalf("event %v, want EventWriter", e)
	}
}

// head waits for the event EventHead for c, which is then the first in the queue. The parameter in
// is the expected time until the key is free.
func (m *mail) head(c store.Claim, in time.Duration) {
	m.b.Helper()
	e := m.next("the event for the head of the queue")
	if e.Kind != store.EventHead || e.Owner != c.Owner {
		m.b.Fatalf("%v, want an event for the first waiter", e)
	}
	if e.HandoffTTL != in {
		m.b.Fatalf("the message has the key free in %v, want %v", e.HandoffTTL, in)
	}
}

// reopens waits for the event EventReopened.
func (m *mail) reopens() {
	m.b.Helper()
	select {
	case <-m.reopened:
	case <-time.After(10 * time.Second):
		m.b.Fatal("no EventReopened within 10s")
	}
}
