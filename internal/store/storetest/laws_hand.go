package storetest

import (
	"github.com/latchkit/latchkit/internal/store"
)

// handLaws concern leases that were handed to waiters.
var handLaws = []law{
	{name: "a handed lease lasts as long as its waiter asked, unless it confirms", needs: queues, check: func(b *bench) {
		holder, _ := b.newHolder()
		first := b.newWaiter("")
		b.free(holder)
		if left := b.holderLeft(); left <= 0 || left > hand {
			b.Fatalf("%v left of a lease handed over for %v", left, hand)
		}
		second := b.waiter("")
		second.HandoffTTL = blink
		b.queue(second)
		b.checkHolds(first, "renewal by an owner that was handed the key")
		b.free(first)
		b.sleep(blink)
		b.newHolder()
		b.checkState(b.renew(second), store.NotOurs, "renewal by an owner that did not confirm in time")
	}},
	{name: "a renewal makes a handed lease last", needs: queues, check: func(b *bench) {
		holder, _ := b.newHolder()
		first := b.newWaiter("")
		b.free(holder)
		b.checkHolds(first, "renewal by an owner that was handed the key")
		if left := b.holderLeft(); left <= hand {
			b.Fatalf("%v left after a renewal by %v", left, ttl)
		}
	}},
	{name: "an acquire by an owner that was handed the key finds the grant, and extends it to the full TTL", needs: queues, check: func(b *bench) {
		holder, _ := b.newHolder()
		first := b.newWaiter("")
		b.free(holder)
		handed := b.queue(b.claim(owner())).Holder
		g := b.acquireSoon(first, "acquire by an owner that was handed the key")
		if g.Fence != handed.Fence {
			b.Fatalf("fence %d became %d", handed.Fence, g.Fence)
		}
		if left := b.holderLeft(); left <= hand {
			b.Fatalf("%v left after an acquire for %v", left, ttl)
		}
	}},
	{name: "a waiter that does not confirm costs the others its claim only", needs: queues, check: func(b *bench) {
		holder, _ := b.newHolder()
		first := b.waiter("")
		first.HandoffTTL = blink
		b.queue(first)
		second := b.newWaiter("")
		b.free(holder)
		b.sleep(blink)
		b.acquireSoon(second, "acquire by the next, after the claim")
		b.checkState(b.renew(first), store.NotOurs, "renewal by an owner that did not confirm in time")
	}},
	{name: "a process that does not confirm loses its other places too", needs: notifies, check: func(b *bench) {
		at := b.listen(b.Store)
		holder, _ := b.newHolder()
		first := b.waiter(at.inbox)
		first.HandoffTTL = blink
		b.queue(first)
		b.newWaiter(at.inbox)
		other := b.newWaiter("")
		b.free(holder)
		b.sleep(blink)
		b.queue(b.claim(owner()))
		b.checkHolds(other, "renewal by the other process's waiter")
		b.free(other)
		b.newHolder()
	}},
	{name: "a process that confirmed keeps its other places, also when that lease runs out", needs: notifies, check: func(b *bench) {
		at := b.listen(b.Store)
		for _, confirm := range []func(store.Claim){
			func(c store.Claim) { b.checkHolds(c, "renewal by an owner that was handed the key") },
			func(c store.Claim) { b.acquireSoon(c, "acquire by an owner that was handed the key") },
		} {
			holder, _ := b.newHolder()
			first := b.waiter(at.inbox)
			first.TTL, first.HandoffTTL = 2*blink, 2*blink
			b.queue(first)
			second := b.newWaiter(at.inbox)
			b.free(holder)
			confirm(first)
			b.sleep(2 * blink)
			b.queue(b.claim(owner()))
			b.checkHolds(second, "renewal by the next of that process")
			b.free(second)
		}
	}},
	{name: "a process that gives a grant back unconfirmed keeps its other places", needs: notifies, check: func(b *bench) {
		at := b.listen(b.Store)
		holder, _ := b.newHolder()
		first, second := b.newWaiter(at.inbox), b.newWaiter(at.inbox)
		b.free(holder)
		b.free(first)
		b.checkHolds(second, "renewal by the next of that process")
	}},
	{name: "a waiter whose claim lapsed is the first again if it asks before the next is served", needs: allOf(notifies, foreign), check: func(b *bench) {
		at := b.listen(b.Store)
		holder, _ := b.newHolder()
		first := b.waiter(at.inbox)
		first.HandoffTTL = blink
		b.queue(first)
		second := b.newWaiter(at.inbox)
		b.free(holder)
		b.sleep(blink)
		b.Occupy(b.TB, b.key, 4*blink) // a program that does not use the queue
		if g := b.queue(first); g.Place != 1 {
			b.Fatalf("place %d, want 1", g.Place)
		}
		if g := b.queue(second); g.Place != 2 {
			b.Fatalf("place %d of the next, want 2", g.Place)
		}
		b.sleep(4 * blink)
		b.acquireSoon(first, "acquire by the first in the queue")
		b.free(first)
		b.checkHolds(second, "renewal by the next")
	}},
	{name: "a waiter whose process is gone is passed over at once", needs: notifies, check: func(b *bench) {
		holder, _ := b.newHolder()
		nobody := "nobody:" + owner()
		gone := []store.Claim{b.newWaiter(nobody), b.newWaiter(nobody)}
		first := b.newWaiter("")
		gone = append(gone, b.newWaiter(nobody))
		b.free(holder)
		b.checkHolds(first, "renewal by the first whose process lives")
		b.free(first)
		for _, c := range gone {
			b.checkState(b.renew(c), store.NotOurs, "renewal by an owner that is gone")
		}
		b.newHolder()
	}},
	{name: "an acquire whose inbox has no subscriber returns NotListening", needs: notifies, check: func(b *bench) {
		at := b.listen(b.Store)
		b.newHolder()
		if g := b.queue(b.waiter("nobody:" + owner())); !g.NotListening {
			b.Fatal("the inbox has no subscriber, and the answer is without NotListening")
		}
		for _, inbox := range []string{at.inbox, ""} {
			if g := b.queue(b.waiter(inbox)); g.NotListening {
				b.Fatalf("NotListening at inbox %q", inbox)
			}
		}
	}},
	{name: "a holder that is broken before it confirmed costs its process nothing else", needs: allOf(notifies, breaks), check: func(b *bench) {
		at := b.listen(b.Store)
		holder, _ := b.newHolder()
		first, second := b.newWaiter(at.inbox), b.newWaiter(at.inbox)
		b.free(holder)
		fence := b.queue(b.claim(owner())).Holder.Fence
		b.checkState(b.breakHolder(fence, "drill"), store.Released, "break")
		b.checkState(b.renew(first), store.Revoked, "renewal by the revoked holder")
		b.checkHolds(second, "renewal by the next of that process")
	}},
	{name: "fences grow through hand-overs", needs: allOf(queues, mintsFences), check: func(b *bench) {
		holder, g := b.newHolder()
		var waiters []store.Claim
		for range 10 {
			w := b.waiter("")
			w.FenceCount = 3
			b.queue(w)
			waiters = append(waiters, w)
		}
		for i, w := range waiters {
			b.free(holder)
			holder = w
			last := g.Fence + uint64(g.FenceCount) - 1
			if g = b.acquireSoon(w, "acquire by an owner that was handed the key"); g.Fence <= last {
				b.Fatalf("hand-over %d has fence %d after %d", i, g.Fence, last)
			}
		}
	}},
	{name: "a block of a handed lease is whole", needs: allOf(queues, mintsFences), check: func(b *bench) {
		// The block of fences reaches 90 ms ahead of the clock. If the block were smaller, the
		// clock could advance beyond it, and hide that a block was given twice.
		const block = 90_000
		holder, _ := b.newHolder()
		first, second := b.waiter(""), b.waiter("")
		first.FenceCount = block
		b.queue(first)
		b.queue(second)
		b.sleep(blink) // now the clock is far enough ahead of the counter for a whole block
		b.free(holder)
		g := b.acquireSoon(first, "acquire by an owner that was handed the key")
		if g.FenceCount != block {
			b.Fatalf("%d fences reserved of %d", g.FenceCount, block)
		}
		b.free(first)
		if next := b.acquireSoon(second, "acquire by the next"); next.Fence < g.Fence+block {
			b.Fatalf("fence %d lies in the block %d…%d", next.Fence, g.Fence, g.Fence+block-1)
		}
	}},
	{name: "a refused acquire returns the metadata of an owner that was handed the key", needs: allOf(queues, metadata), check: func(b *bench) {
		holder, _ := b.newHolder()
		first := b.waiter("")
		first.Metadata = "host:7|trace=00-ab:cd-01 \n {ü}"
		b.queue(first)
		b.free(holder)
		if h := b.queue(b.claim(owner())).Holder; h.Metadata != first.Metadata {
			b.Fatalf("metadata %q became %q", first.Metadata, h.Metadata)
		}
		b.checkHolds(first, "renewal by an owner that was handed the key")
	}},
}
