package storetest

import (
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// readerLaws concern claims with Mode Shared.
var readerLaws = []law{
	{name: "readers share a key, and a fence", needs: readers, check: func(b *bench) {
		_, first := b.newReader()
		for range 3 {
			if _, g := b.newReader(); g.Fence != first.Fence || g.Fence == 0 {
				b.Fatalf("fence %d beside %d", g.Fence, first.Fence)
			}
		}
		if h := b.checkState(b.acquire(b.claim(owner())), store.Busy, "acquire by a writer").Holder; h.Foreign || h.Fence != first.Fence {
			b.Fatalf("a writer gets the holder %+v, want fence %d", h, first.Fence)
		}
	}},
	{name: "readers keep writers out until the last is gone", needs: readers, check: func(b *bench) {
		one, _ := b.newReader()
		other, _ := b.newReader()
		for _, r := range []store.Claim{one, other} {
			b.checkState(b.acquire(b.claim(owner())), store.Busy, "acquire by a writer")
			b.free(r)
		}
		b.newHolder()
	}},
	{name: "a writer keeps readers out", needs: readers, check: func(b *bench) {
		w, _ := b.newHolder()
		r := b.reader()
		b.checkState(b.acquire(r), store.Busy, "acquire by a reader")
		b.free(w)
		b.acquireSoon(r, "acquire by a reader")
	}},
	{name: "a foreign holder keeps readers out", needs: allOf(readers, foreign), check: func(b *bench) {
		b.Occupy(b.TB, b.key, ttl)
		if g := b.checkState(b.acquire(b.reader()), store.Busy, "acquire by a reader"); !g.Holder.Foreign {
			b.Fatalf("holder %+v is not foreign", g.Holder)
		}
	}},
	{name: "a reader that asks again is a reader once", needs: readers, check: func(b *bench) {
		r, first := b.newReader()
		if g := b.acquireSoon(r, "second acquire of the same reader"); g.Fence != first.Fence {
			b.Fatalf("fence %d became %d", first.Fence, g.Fence)
		}
		b.free(r)
		b.checkState(b.release(r), store.NotOurs, "second release")
		b.newHolder()
	}},
	{name: "fences grow from phase to phase", needs: readers, check: func(b *bench) {
		var last uint64
		for i := range 10 {
			c, g := b.newHolder()
			b.free(c)
			r, shared := b.newReader()
			b.free(r)
			if g.Fence <= last || shared.Fence <= g.Fence {
				b.Fatalf("round %d: a writer has fence %d after %d, readers %d", i, g.Fence, last, shared.Fence)
			}
			last = shared.Fence
		}
	}},
	{name: "a dead reader costs its own time only", needs: allOf(readers, queues), check: func(b *bench) {
		alive, g := b.newReader()
		dead := b.reader()
		dead.TTL = blink
		b.acquireSoon(dead, "acquire by a reader")
		w := b.newWaiter("")
		b.sleep(blink)
		b.checkState(b.acquire(dead), store.Busy, "acquire by a reader whose time is over, while a writer waits")
		dead.Fence = g.Fence
		b.checkState(b.renew(dead), store.NotOurs, "renewal by a reader whose time is over")
		b.free(alive)
		b.checkHolds(w, "renewal by the writer")
	}},
	{name: "a phase whose last reader died ends with its time", needs: readers, check: func(b *bench) {
		dead := b.reader()
		dead.TTL = blink
		begun := time.Now()
		b.acquireSoon(dead, "acquire by a reader")
		long, _ := b.newReader()
		w := b.newWaiter("")
		b.free(long) // only the dead reader's time is left; on a busy machine it may be over
		if left := b.holderLeft(); left > blink && time.Since(begun) < blink {
			b.Fatalf("%v left of a reader that has %v", left, blink)
		}
		b.sleep(blink)
		b.acquireSoon(w, "acquire by a writer after the readers")
	}},
	{name: "a renewal makes a reader's part last, and no longer than it was asked", needs: readers, check: func(b *bench) {
		r, g := b.newReader()
		r.Fence, r.TTL = g.Fence, 2*ttl
		b.checkState(b.renew(r), store.Granted, "renewal by a reader")
		if left := b.holderLeft(); left <= ttl || left > 2*ttl {
			b.Fatalf("%v left after a renewal by %v", left, 2*ttl)
		}
		r.TTL = time.Second
		b.checkState(b.renew(r), store.Granted, "renewal by a reader")
		if left := b.holderLeft(); left <= ttl {
			b.Fatalf("%v left after a late, short renewal", left)
		}
	}},
	{name: "a reader of another phase is none", needs: readers, check: func(b *bench) {
		old, g := b.newReader()
		old.Fence = g.Fence
		b.free(old)
		r, g := b.newReader()
		b.checkState(b.renew(old), store.NotOurs, "renewal by a reader of the phase before")
		r.Fence = old.Fence
		b.checkState(b.renew(r), store.NotOurs, "renewal with the fence of the phase before")
		b.checkState(b.release(old), store.NotOurs, "release by a reader of the phase before")
		r.Fence = g.Fence
		b.checkState(b.renew(r), store.Granted, "renewal by a reader")
	}},
	{name: "an undone reader takes nothing later", needs: allOf(readers, refusesLate), check: func(b *bench) {
		r, _ := b.newReader()
		r.TombstoneTTL = time.Minute
		b.free(r)
		b.checkState(b.acquire(r), store.Undone, "late acquire")
		b.newHolder()
	}},
	{name: "a reader whose answer was lost is found again", needs: allOf(readers, losesReplies), check: func(b *bench) {
		r := b.reader()
		b.LoseReply(b.TB, locker.OpAcquire, b.key)
		if g, err := b.Store.Acquire(b.Context(), r); err == nil {
			b.Fatalf("the acquire answered %v although its answer was lost", g.State)
		}
		fence := b.phase()
		if g := b.acquireSoon(r, "repeated acquire"); g.Fence != fence {
			b.Fatalf("fence %d became %d", fence, g.Fence)
		}
		b.free(r)
		b.newHolder()
	}},

	// laws about fairness
	{name: "no reader enters while a writer waits", needs: allOf(readers, queues), check: func(b *bench) {
		r, _ := b.newReader()
		w := b.newWaiter("")
		late := b.reader()
		b.queue(late)
		b.checkState(b.acquire(b.reader()), store.Busy, "acquire by a reader that does not wait")
		b.free(r)
		b.checkHolds(w, "renewal by the writer")
		b.checkState(b.acquire(late), store.Busy, "acquire by the reader behind it")
	}},
	{name: "after a writer all readers enter together, after them one writer", needs: allOf(readers, queues), check: func(b *bench) {
		first, _ := b.newHolder()
		second := b.newWaiter("")
		one := b.reader()
		b.queue(one)
		third := b.newWaiter("")
		other := b.reader()
		b.queue(other)
		b.free(first)
		for _, r := range []store.Claim{one, other} {
			if g := b.acquireSoon(r, "acquire by a reader after a writer"); !g.Writer {
				b.Fatal("a reader is not notified that a writer waits")
			}
		}
		late := b.reader()
		b.queue(late)
		b.free(one)
		b.checkState(b.acquire(second), store.Busy, "acquire by a writer while a reader holds")
		b.free(other)
		b.checkHolds(second, "renewal by the writer after the readers")
		b.free(second)
		b.acquireSoon(late, "acquire by a reader after a writer")
		b.free(late)
		b.checkHolds(third, "renewal by the writer after the readers")
		b.free(third)
		b.newHolder()
	}},
	{name: "a writer that gives up lets the readers behind it in", needs: allOf(readers, queues), check: func(b *bench) {
		r, g := b.newReader()
		w := b.newWaiter("")
		late := b.reader()
		b.queue(late)
		b.checkState(b.release(w), store.NotOurs, "release by a waiting writer")
		late.Fence = g.Fence
		b.checkState(b.renew(late), store.Granted, "renewal by the reader behind it")
		b.free(r)
		b.checkState(b.renew(late), store.Granted, "renewal by the reader behind it")
		b.free(late)
		b.newHolder()
	}},
	{name: "a writer that is dead keeps no reader out", needs: allOf(readers, notifies), check: func(b *bench) {
		b.newReader()
		b.newWaiter("nobody:" + owner())
		b.newReader()
	}},
	{name: "readers are notified that a writer waits, also those that enter after it", needs: allOf(readers, notifies), check: func(b *bench) {
		at := b.listen(b.Store)
		r := b.reader()
		r.Queue, r.Inbox = true, at.inbox
		if b.acquireSoon(r, "acquire by a reader").Writer {
			b.Fatal("no writer waits")
		}
		w := b.newWaiter("")
		at.expectWriter(r)
		late := b.reader()
		late.Inbox = at.inbox
		b.queue(late)
		r.Fence = b.phase()
		if !b.checkState(b.renew(r), store.Granted, "renewal by a reader").Writer {
			b.Fatal("a renewal does not say that a writer waits")
		}
		b.free(r)
		b.newWaiter("") // another writer
		b.free(w)
		if !at.expectGrant(late).Writer {
			b.Fatal("the reply to a reader does not show that a writer waits")
		}
	}},
	{name: "a writer that asks again notifies the readers again", needs: allOf(readers, notifies), check: func(b *bench) {
		at := b.listen(b.Store)
		r := b.reader()
		r.Inbox = at.inbox
		b.acquireSoon(r, "acquire by a reader")
		w := b.newWaiter("")
		at.expectWriter(r)
		b.queue(w)
		at.expectWriter(r)
	}},
	{name: "a reader that was let in and does not react costs its claim only", needs: allOf(readers, queues), check: func(b *bench) {
		holder, _ := b.newHolder()
		r := b.reader()
		r.HandoffTTL = blink
		b.queue(r)
		w := b.newWaiter("")
		b.free(holder)
		b.sleep(blink)
		b.acquireSoon(w, "acquire by a writer after the claim")
		r.Fence = b.phase()
		b.checkState(b.renew(r), store.NotOurs, "renewal by an owner that did not react")
	}},

	// laws about revocation, Inspect and OnceFor
	{name: "a revoked phase ends the parts of all its readers, which receive the reason", needs: allOf(readers, breaks), check: func(b *bench) {
		one, g := b.newReader()
		other, _ := b.newReader()
		w := b.waiter("")
		if b.Can.Queue {
			b.queue(w)
		}
		b.checkState(b.breakHolder(g.Fence, "maintenance"), store.Released, "break")
		for _, r := range []store.Claim{one, other} {
			r.Fence = g.Fence
			for _, answer := range []store.Grant{b.renew(r), b.release(r)} {
				if b.checkState(answer, store.Revoked, "call of a revoked reader"); answer.Reason != "maintenance" {
					b.Fatalf("the reason is %q", answer.Reason)
				}
			}
		}
		b.acquireSoon(w, "acquire by a writer afterwards")
		b.checkState(b.breakHolder(g.Fence, "again"), store.NotOurs, "break of a phase that is over")
	}},
	{name: "inspection counts the readers", needs: allOf(readers, breaks), check: func(b *bench) {
		var last store.Claim
		for n := 1; n <= 3; n++ {
			last, _ = b.newReader()
			if i := b.info(); !i.Held || i.Foreign || i.Mode != locker.Shared || i.Readers != n || i.Fence == 0 {
				b.Fatalf("%+v, want %d readers", i, n)
			} else if len(i.Reading) != n || slices.ContainsFunc(i.Reading, func(r store.Reader) bool { return r.Left <= 0 }) {
				b.Fatalf("the readers are %+v, want %d with time left", i.Reading, n)
			}
		}
		b.free(last)
		if n := b.info().Readers; n != 2 {
			b.Fatalf("%d readers after one of 3 has left", n)
		}
	}},
	{name: "work that readers have done is done", needs: allOf(readers, marksDone, queues), check: func(b *bench) {
		r, _ := b.newReader()
		r.OnceFor, r.Complete = ttl, true
		stays, _ := b.newReader()
		w, late := b.waiter(""), b.reader()
		w.OnceFor = ttl
		b.queue(w)
		b.queue(late)
		b.free(r)
		b.checkState(b.acquire(w), store.Done, "acquire with OnceFor")
		late.Fence = b.phase()
		b.checkState(b.renew(late), store.Granted, "renewal by a reader that stood behind it")
		b.free(stays)
	}},
}

// reader returns the claim of a new owner that wants to read. If this owner must wait, it queues.
func (b *bench) reader() store.Claim {
	c := b.waiter("")
	c.Mode = locker.Shared
	return c
}

// newReader makes a new owner a reader, and returns its claim and the grant.
func (b *bench) newReader() (store.Claim, store.Grant) {
	b.Helper()
	c := b.claim(owner())
	c.Mode = locker.Shared
	return c, b.acquireSoon(c, "acquire by a reader")
}

// phase returns the fence of the present phase, which a refused caller gets in its answer.
func (b *bench) phase() uint64 {
	b.Helper()
	return b.checkState(b.acquire(b.claim(owner())), store.Busy, "acquire by a writer").Holder.Fence
}
