package storetest

import (
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// queueLaws concern waiters on the server, and their order.
var queueLaws = []law{
	{name: "waiters are granted the key in the order in which they began to wait", needs: queues, check: func(b *bench) {
		holder, _ := b.newHolder()
		waiters := []store.Claim{b.newWaiter(""), b.newWaiter(""), b.newWaiter(""), b.newWaiter("")}
		for len(waiters) > 0 {
			b.free(holder)
			holder, waiters = waiters[0], waiters[1:]
			b.checkHolds(holder, "renewal by an owner that has waited longest")
			for _, w := range waiters {
				b.checkState(b.renew(w), store.NotOurs, "renewal by an owner that still waits")
			}
		}
		b.free(holder)
		b.newHolder()
	}},
	{name: "a waiter gets its place, and an acquire that does not queue gets the place that it would have", needs: queues, check: func(b *bench) {
		b.newHolder()
		for place := 1; place <= 4; place++ {
			if g := b.queue(b.claim(owner())); g.Place != place {
				b.Fatalf("place %d for an acquire that does not queue, want %d", g.Place, place)
			}
			if g := b.queue(b.waiter("")); g.Place != place {
				b.Fatalf("place %d, want %d", g.Place, place)
			}
		}
	}},
	{name: "an owner that was handed the key does not count as a waiter", needs: queues, check: func(b *bench) {
		holder, _ := b.newHolder()
		b.newWaiter("")
		second := b.newWaiter("")
		b.free(holder)
		if g := b.queue(second); g.Place != 1 {
			b.Fatalf("place %d, want 1", g.Place)
		}
		if g := b.queue(b.claim(owner())); g.Place != 2 {
			b.Fatalf("place %d for an acquire that does not queue, want 2", g.Place)
		}
	}},
	{name: "a waiter that asks again keeps its place", needs: queues, check: func(b *bench) {
		holder, _ := b.newHolder()
		first, second := b.newWaiter(""), b.newWaiter("")
		if g := b.queue(first); g.Place != 1 {
			b.Fatalf("asking again moved the first to place %d", g.Place)
		}
		if g := b.queue(second); g.Place != 2 {
			b.Fatalf("asking again moved the second to place %d", g.Place)
		}
		b.free(holder)
		b.checkHolds(first, "renewal by an owner that has waited longest")
		b.free(first)
		b.checkHolds(second, "renewal by the next")
		b.free(second)
		b.newHolder() // no owner is in the queue twice
	}},
	{name: "a newcomer does not overtake the waiters when a lease has expired", needs: queues, check: func(b *bench) {
		first := b.queuedBehindLapse("")
		newcomer := b.newWaiter("")
		b.checkHolds(first, "renewal by an owner that has waited longest")
		b.free(first)
		b.checkHolds(newcomer, "renewal by the newcomer when its turn has come")
	}},
	{name: "a waiter further back does not overtake when it asks again", needs: queues, check: func(b *bench) {
		holder := b.claim(owner())
		holder.TTL = 2 * blink
		b.acquireSoon(holder, "acquire of a free key")
		first, second := b.newWaiter(""), b.newWaiter("")
		b.sleep(2 * blink)
		if g := b.queue(second); g.Place != 1 {
			b.Fatalf("place %d while the first has the key, want 1", g.Place)
		}
		b.checkHolds(first, "renewal by an owner that has waited longest")
	}},
	{name: "the first in the queue takes a key whose lease ran out, when it asks", needs: queues, check: func(b *bench) {
		first := b.queuedBehindLapse("")
		b.acquireSoon(first, "acquire by the first in the queue")
		if left := b.holderLeft(); left <= hand {
			b.Fatalf("%v left: an owner that has asked has its whole TTL", left)
		}
		b.free(first)
		b.newHolder()
	}},
	{name: "an acquire that does not queue does not overtake", needs: queues, check: func(b *bench) {
		first := b.queuedBehindLapse("")
		b.checkState(b.acquire(b.claim(owner())), store.Busy, "acquire by an owner that does not wait")
		b.checkHolds(first, "renewal by an owner that has waited longest")
		b.checkState(b.acquire(b.claim(owner())), store.Busy, "acquire by an owner that does not wait")
		b.free(first)
		b.newHolder()
	}},
	{name: "a waiter that gives up leaves the queue", needs: queues, check: func(b *bench) {
		holder, _ := b.newHolder()
		first, second := b.newWaiter(""), b.newWaiter("")
		b.checkState(b.release(first), store.NotOurs, "release by a waiter")
		if g := b.queue(second); g.Place != 1 {
			b.Fatalf("place %d behind one that gave up", g.Place)
		}
		b.free(holder)
		b.checkState(b.renew(first), store.NotOurs, "renewal by an owner that gave up")
		b.checkHolds(second, "renewal by an owner that still waited")
	}},
	{name: "giving up leaves the others where they are", needs: queues, check: func(b *bench) {
		holder, _ := b.newHolder()
		first, second := b.newWaiter(""), b.newWaiter("")
		b.checkState(b.release(second), store.NotOurs, "release by a waiter")
		b.checkState(b.release(b.waiter("")), store.NotOurs, "release by an owner that never waited")
		b.checkHolds(holder, "renewal by the holder")
		b.free(holder)
		b.checkHolds(first, "renewal by an owner that still waited")
		b.free(first)
		b.newHolder()
	}},
	{name: "giving up hands a grant on that crossed it", needs: queues, check: func(b *bench) {
		holder, _ := b.newHolder()
		first, second := b.newWaiter(""), b.newWaiter("")
		b.free(holder)
		b.checkState(b.release(first), store.Released, "release by an owner that does not know of its grant")
		b.checkHolds(second, "renewal by the next")
	}},
	{name: "an undone waiter leaves the queue and does not come back", needs: allOf(queues, refusesLate), check: func(b *bench) {
		holder, _ := b.newHolder()
		first, second := b.newWaiter(""), b.newWaiter("")
		undoing := first
		undoing.TombstoneTTL = ttl
		b.checkState(b.release(undoing), store.NotOurs, "undo by a waiter")
		b.checkState(b.acquire(first), store.Undone, "late acquire")
		b.free(holder)
		b.checkHolds(second, "renewal by the next")
	}},
	{name: "an acquire that queued although its answer was lost is in the queue once", needs: allOf(queues, losesReplies), check: func(b *bench) {
		holder, _ := b.newHolder()
		first := b.waiter("")
		b.LoseReply(b.TB, locker.OpAcquire, b.key)
		if g, err := b.Store.Acquire(b.Context(), first); err == nil {
			b.Fatalf("the acquire answered %v although its answer was lost", g.State)
		}
		second := b.newWaiter("")
		if g := b.queue(first); g.Place != 1 {
			b.Fatalf("place %d, want 1", g.Place)
		}
		b.free(holder)
		b.checkHolds(first, "renewal by an owner that has waited longest")
		b.free(first)
		b.checkHolds(second, "renewal by the next")
		b.free(second)
		b.newHolder()
	}},
	{name: "a kept key goes to a waiter when it expires", needs: allOf(queues, atLeast), check: func(b *bench) {
		holder, _ := b.newHolder()
		first := b.newWaiter("")
		holder.KeepFor = blink
		b.free(holder)
		b.checkState(b.renew(first), store.NotOurs, "renewal by an owner that still waits")
		b.sleep(blink)
		b.queue(b.claim(owner()))
		b.checkHolds(first, "renewal by an owner that waited")
	}},
	{name: "a revoked holder's key goes to a waiter", needs: allOf(queues, breaks), check: func(b *bench) {
		_, g := b.newHolder()
		first := b.newWaiter("")
		b.checkState(b.breakHolder(g.Fence, "drill"), store.Released, "break")
		b.checkHolds(first, "renewal by an owner that waited")
	}},
	{name: "inspection counts the waiters", needs: allOf(queues, breaks), check: func(b *bench) {
		holder, _ := b.newHolder()
		for n, then := range []func(){
			func() {},
			func() { b.newWaiter("") },
			func() { b.newWaiter("") },
			func() { b.newWaiter("") },
		} {
			if then(); b.info().Waiters != n {
				b.Fatalf("%d wait, want %d", b.info().Waiters, n)
			}
		}
		b.free(holder)
		if i := b.info(); i.Waiters != 2 {
			b.Fatalf("%d wait after one was granted the key, want 2", i.Waiters)
		}
	}},
	{name: "nothing is left in the queue afterwards", needs: allOf(notifies, counts, marksDone), check: func(b *bench) {
		holder, _ := b.newHolder()
		done := b.waiter("")
		done.OnceFor = ttl
		b.queue(done)
		gone, confirmed, silent, gaveUp := b.newWaiter("nobody:"+owner()), b.newWaiter(""), b.newWaiter(""), b.newWaiter("")
		b.checkState(b.release(gaveUp), store.NotOurs, "release by a waiter")
		if n := b.Queued(b.TB, b.key); n != 4 {
			b.Fatalf("%d in the queue, want 4", n)
		}
		holder.OnceFor, holder.Complete = ttl, true
		b.free(holder) // the owner "confirmed" gets the key: "done" needs no key, "gone" has no subscriber
		b.checkState(b.renew(gone), store.NotOurs, "renewal by an owner that is gone")
		b.checkHolds(confirmed, "renewal by an owner that waited")
		b.free(confirmed)
		b.free(silent)
		if n := b.Queued(b.TB, b.key); n != 0 {
			b.Fatalf("%d entries in the queue without waiters", n)
		}
		b.newHolder()
		if n := b.Queued(b.TB, b.key); n != 0 {
			b.Fatalf("%d in the queue afterwards", n)
		}
	}},
}

// queuedBehindLapse makes a new owner wait for a held key, and returns its claim when the holder's
// lease has expired.
func (b *bench) queuedBehindLapse(inbox string) store.Claim {
	b.Helper()
	c := b.claim(owner())
	c.TTL = blink
	b.acquireSoon(c, "acquire of a free key")
	w := b.newWaiter(inbox)
	b.sleep(blink)
	return w
}
