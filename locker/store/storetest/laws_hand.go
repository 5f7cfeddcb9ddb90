package storetest

import (
	"github.com/latchkit/latchkit/locker/store"
)

// handLaws concern leases that were handed to waiters.
var handLaws = []law{
	{name: "a handed lease lasts as long as its waiter asked, unless it confirms", needs: queues, check: func(b *bench) {
		holder, _ := b.granted()
		first := b.queued("")
		b.free(holder)
		if left := b.left(); left <= 0 || left > hand {
			b.Fatalf("%v left of a lease handed over for %v", left, hand)
		}
		second := b.waiter("")
		second.HandoffTTL = blink
		b.queue(second)
		b.owns(first, "renewal by an owner that was handed the key")
		b.free(first)
		b.pass(blink)
		b.granted()
		b.want(b.renew(second), store.NotOurs, "renewal by an owner that did not confirm in time")
	}},
	{name: "a renewal makes a handed lease last", needs: queues, check: func(b *bench) {
		holder, _ := b.granted()
		first := b.queued("")
		b.free(holder)
		b.owns(first, "renewal by an owner that was handed the key")
		if left := b.left(); left <= hand {
			b.Fatalf("%v left after a renewal by %v", left, ttl)
		}
	}},
	{name: "an acquire by an owner that was handed the key finds the grant, and extends it to the full TTL", needs: queues, check: func(b *bench) {
		holder, _ := b.granted()
		first := b.queued("")
		b.free(holder)
		handed := b.queue(b.claim(owner())).Holder
		g := b.gets(first, "acquire by an owner that was handed the key")
		if g.Fence != handed.Fence {
			b.Fatalf("fence %d became %d", handed.Fence, g.Fence)
		}
		if left := b.left(); left <= hand {
			b.Fatalf("%v left after an acquire for %v", left, ttl)
		}
	}},
	{name: "a waiter that does not confirm costs the others its claim only", needs: queues, check: func(b *bench) {
		holder, _ := b.granted()
		first := b.waiter("")
		first.HandoffTTL = blink
		b.queue(first)
		second := b.queued("")
		b.free(holder)
		b.pass(blink)
		b.gets(second, "acquire by the next, after the claim")
		b.want(b.renew(first), store.NotOurs, "renewal by an owner that did not confirm in time")
	}},
	{name: "a process that does not confirm loses its other places too", needs: notifies, check: func(b *bench) {
		at := b.listen(b.Store)
		holder, _ := b.granted()
		first := b.waiter(at.inbox)
		first.HandoffTTL = blink
		b.queue(first)
		b.queued(at.inbox)
		other := b.queued("")
		b.free(holder)
		b.pass(blink)
		b.queue(b.claim(owner()))
		b.owns(other, "renewal by the other process's waiter")
		b.free(other)
		b.granted()
	}},
	{name: "a process that confirmed keeps its other places, also when that lease runs out", needs: notifies, check: func(b *bench) {
		at := b.listen(b.Store)
		for _, confirm := range []func(store.Claim){
			func(c store.Claim) { b.owns(c, "renewal by an owner that was handed the key") },
			func(c store.Claim) { b.gets(c, "acquire by an owner that was handed the key") },
		} {
			holder, _ := b.granted()
			first := b.waiter(at.inbox)
			first.TTL, first.HandoffTTL = 2*blink, 2*blink
			b.queue(first)
			second := b.queued(at.inbox)
			b.free(holder)
			confirm(first)
			b.pass(2 * blink)
			b.queue(b.claim(owner()))
			b.owns(second, "renewal by the next of that process")
			b.free(second)
		}
	}},
	{name: "a process that gives a grant back unconfirmed keeps its other places", needs: notifies, check: func(b *bench) {
		at := b.listen(b.Store)
		holder, _ := b.granted()
		first, second := b.queued(at.inbox), b.queued(at.inbox)
		b.free(holder)
		b.free(first)
		b.owns(second, "renewal by the next of that process")
	}},
	{name: "a waiter whose claim lapsed is the first again if it asks before the next is served", needs: all(notifies, foreign), check: func(b *bench) {
		at := b.listen(b.Store)
		holder, _ := b.granted()
		first := b.waiter(at.inbox)
		first.HandoffTTL = blink
		b.queue(first)
		second := b.queued(at.inbox)
		b.free(holder)
		b.pass(blink)
		b.Occupy(b.TB, b.key, 4*blink) // a program that does not use the queue
		if g := b.queue(first); g.Place != 1 {
			b.Fatalf("place %d, want 1", g.Place)
		}
		if g := b.queue(second); g.Place != 2 {
			b.Fatalf("place %d of the next, want 2", g.Place)
		}
		b.pass(4 * blink)
		b.gets(first, "acquire by the first in the queue")
		b.free(first)
		b.owns(second, "renewal by the next")
	}},
	{name: "a waiter whose process is gone is passed over at once", needs: notifies, check: func(b *bench) {
		holder, _ := b.granted()
		nobody := "nobody:" + owner()
		gone := []store.Claim{b.queued(nobody), b.queued(nobody)}
		first := b.queued("")
		gone = append(gone, b.queued(nobody))
		b.free(holder)
		b.owns(first, "renewal by the first whose process lives")
		b.free(first)
		for _, c := range gone {
			b.want(b.renew(c), store.NotOurs, "renewal by an owner that is gone")
		}
		b.granted()
	}},
	{name: "an acquire whose inbox has no subscriber returns NotListening", needs: notifies, check: func(b *bench) {
		at := b.listen(b.Store)
		b.granted()
		if g := b.queue(b.waiter("nobody:" + owner())); !g.NotListening {
			b.Fatal("the inbox has no subscriber, and the answer is without NotListening")
		}
		for _, inbox := range []string{at.inbox, ""} {
			if g := b.queue(b.waiter(inbox)); g.NotListening {
				b.Fatalf("NotListening at inbox %q", inbox)
			}
		}
	}},
	{name: "a holder that is broken before it confirmed costs its process nothing else", needs: all(notifies, breaks), check: func(b *bench) {
		at := b.listen(b.Store)
		holder, _ := b.granted()
		first, second := b.queued(at.inbox), b.queued(at.inbox)
		b.free(holder)
		fence := b.queue(b.claim(owner())).Holder.Fence
		b.want(b.breakHolder(fence, "drill"), store.Released, "break")
		b.want(b.renew(first), store.Revoked, "renewal by the revoked holder")
		b.owns(second, "renewal by the next of that process")
	}},
	{name: "fences grow through hand-overs", needs: all(queues, fence), check: func(b *bench) {
		holder, g := b.granted()
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
			if g = b.gets(w, "acquire by an owner that was handed the key"); g.Fence <= last {
				b.Fatalf("hand-over %d has fence %d after %d", i, g.Fence, last)
			}
		}
	}},
	{name: "a block of a handed lease is whole", needs: all(queues, fence), check: func(b *bench) {
		// The block reaches 90 ms ahead of the clock. If it were smaller, the clock could advance
		// beyond it, and hide that a block was given twice.
		const block = 90_000
		holder, _ := b.granted()
		first, second := b.waiter(""), b.waiter("")
		first.FenceCount = block
		b.queue(first)
		b.queue(second)
		b.pass(blink) // now the clock is far enough ahead of the counter for a whole block
		b.free(holder)
		g := b.gets(first, "acquire by an owner that was handed the key")
		if g.FenceCount != block {
			b.Fatalf("%d fences reserved of %d", g.FenceCount, block)
		}
		b.free(first)
		if next := b.gets(second, "acquire by the next"); next.Fence < g.Fence+block {
			b.Fatalf("fence %d lies in the block %d…%d", next.Fence, g.Fence, g.Fence+block-1)
		}
	}},
	{name: "a refused acquire returns the metadata of an owner that was handed the key", needs: all(queues, metadata), check: func(b *bench) {
		holder, _ := b.granted()
		first := b.waiter("")
		first.Metadata = "host:7|trace=00-ab:cd-01 \n {ü}"
		b.queue(first)
		b.free(holder)
		if h := b.queue(b.claim(owner())).Holder; h.Metadata != first.Metadata {
			b.Fatalf("metadata %q became %q", first.Metadata, h.Metadata)
		}
		b.owns(first, "renewal by an owner that was handed the key")
	}},
}
