package storetest

import (
	"fmt"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// permitLaws concern the permits of a semaphore.
var permitLaws = []law{
	{name: "as many owners as the limit allows hold permits, and no more", needs: permits, check: func(b *bench) {
		var held []store.Claim
		for range 4 {
			c, _ := b.permit(1, 4)
			held = append(held, c)
		}
		b.queue(b.units(1, 4))
		b.free(held[2])
		b.permit(1, 4)
		b.queue(b.units(1, 4))
	}},
	{name: "a permit's weight counts", needs: permits, check: func(b *bench) {
		b.permit(2, 5)
		heavy, _ := b.permit(3, 5)
		b.queue(b.units(1, 5))
		b.free(heavy)
		b.queue(b.units(4, 5))
		b.permit(3, 5)
	}},
	{name: "the smallest limit of the permits that are held counts", needs: permits, check: func(b *bench) {
		first, _ := b.permit(1, 2)
		second, _ := b.permit(1, 8)
		b.queue(b.units(1, 8)) // the first holder's limit is two
		b.free(first)
		third, _ := b.permit(1, 8)
		b.queue(b.units(1, 2))
		b.free(second)
		b.free(third)
		b.permit(1, 1)
		b.queue(b.units(1, 8))
	}},
	{name: "the limit of a released permit does not count any more", needs: permits, check: func(b *bench) {
		small, _ := b.permit(1, 3)
		b.permit(1, 5)
		b.permit(1, 5)
		b.queue(b.units(1, 5))
		b.free(small)
		b.permit(1, 5)
		b.permit(2, 5)
		b.queue(b.units(1, 5))
	}},
	{name: "an owner that asks again has one permit, with the same fence", needs: permits, check: func(b *bench) {
		c, first := b.permit(1, 2)
		again := b.acquireSoon(c, "second acquire of the same owner")
		if again.Fence != first.Fence || again.FenceCount != first.FenceCount {
			b.Fatalf("fence %d block %d became %d, %d", first.Fence, first.FenceCount, again.Fence, again.FenceCount)
		}
		b.permit(1, 2)
		b.queue(b.units(1, 2))
	}},
	{name: "every permit has a fence of its own, larger than those before", needs: allOf(permits, mintsFences), check: func(b *bench) {
		last := uint64(0)
		for range 5 {
			c := b.units(1, 5)
			c.FenceCount = 3
			g := b.acquireSoon(c, "acquire of a free unit")
			if g.Fence <= last {
				b.Fatalf("fence %d after %d", g.Fence, last)
			}
			last = g.Fence + uint64(g.FenceCount) - 1
		}
	}},
	{name: "a permit runs out by itself, and the others stay", needs: permits, check: func(b *bench) {
		stays, _ := b.permit(1, 2)
		c := b.units(1, 2)
		c.TTL = blink
		b.acquireSoon(c, "acquire of a free unit")
		if left := b.checkState(b.acquire(b.units(1, 2)), store.Busy, "acquire of a full semaphore").Holder.Left; left > blink || left <= 0 {
			b.Fatalf("the answer says that a unit may come back in %v, want at most %v", left, blink)
		}
		b.sleep(blink)
		next, _ := b.permit(1, 2)
		b.checkState(b.renew(c), store.NotOurs, "renewal of a permit that ran out")
		b.checkState(b.release(c), store.NotOurs, "release of a permit that ran out")
		b.checkHolds(stays, "renewal by an earlier holder")
		b.checkHolds(next, "renewal by the next")
		b.queue(b.units(1, 2))
	}},
	{name: "a renewal makes its own permit last, and shortens none", needs: permits, check: func(b *bench) {
		c, other := b.units(1, 2), b.units(1, 2)
		c.TTL, other.TTL = 2*blink, blink
		b.acquireSoon(c, "acquire of a free unit")
		b.acquireSoon(other, "acquire of the other")
		short := c
		short.TTL = time.Millisecond
		b.checkState(b.renew(short), store.Granted, "renewal for less")
		b.checkState(b.renew(c), store.Granted, "renewal by the holder")
		b.sleep(blink)
		b.checkState(b.renew(c), store.Granted, "renewal by the holder")
		b.sleep(2*blink - blink/5)
		b.permit(1, 2) // the second holder's permit
	}},
	{name: "no newcomer overtakes a heavy waiter", needs: permits, check: func(b *bench) {
		one, _ := b.permit(2, 4)
		two, _ := b.permit(1, 4)
		heavy := b.newUnitWaiter(4, 4, "")
		light := b.newUnitWaiter(1, 4, "")
		b.queue(b.units(1, 4)) // one unit is free, and the first waiter needs four
		b.free(one)
		b.checkState(b.renew(heavy), store.NotOurs, "renewal by a waiter")
		b.checkState(b.renew(light), store.NotOurs, "renewal by the waiter behind it")
		b.free(two)
		b.checkHolds(heavy, "renewal by the heavy waiter")
		b.checkState(b.renew(light), store.NotOurs, "renewal by the waiter behind it")
	}},
	{name: "a release serves all waiters for which its units suffice, in their order", needs: permits, check: func(b *bench) {
		heavy, _ := b.permit(4, 4)
		var served []store.Claim
		for range 4 {
			served = append(served, b.newUnitWaiter(1, 4, ""))
		}
		last := b.newUnitWaiter(1, 4, "")
		b.free(heavy)
		for _, c := range served {
			b.checkHolds(c, "renewal by the owner that has waited")
		}
		b.checkState(b.renew(last), store.NotOurs, "renewal by the fifth")
		b.free(served[1])
		b.checkHolds(last, "renewal by the fifth")
	}},
	{name: "a heavy waiter that leaves lets those behind it in", needs: permits, check: func(b *bench) {
		b.permit(1, 3)
		heavy := b.newUnitWaiter(3, 3, "")
		one, two, three := b.newUnitWaiter(1, 3, ""), b.newUnitWaiter(1, 3, ""), b.newUnitWaiter(1, 3, "")
		b.checkState(b.release(heavy), store.NotOurs, "release by a waiter")
		b.checkHolds(one, "renewal by the first behind it")
		b.checkHolds(two, "renewal by the second behind it")
		b.checkState(b.renew(three), store.NotOurs, "renewal by a waiter that does not fit")
	}},
	{name: "a permit that is handed over and not confirmed comes back after its claim", needs: permits, check: func(b *bench) {
		stays, _ := b.permit(1, 2)
		holder, _ := b.permit(1, 2)
		first := b.units(1, 2)
		first.Queue, first.HandoffTTL = true, blink
		b.queue(first)
		second := b.newUnitWaiter(1, 2, "")
		b.free(holder)
		b.sleep(blink)
		b.acquireSoon(second, "acquire by the next, after the claim")
		b.checkState(b.renew(first), store.NotOurs, "renewal by an owner that did not confirm in time")
		b.checkHolds(stays, "renewal by an earlier holder")
	}},
	{name: "a process that lets a permit lapse loses its other places", needs: allOf(permits, notifies), check: func(b *bench) {
		at := b.listen(b.Store)
		stays, _ := b.permit(1, 2)
		holder, _ := b.permit(1, 2)
		first := b.units(1, 2)
		first.Queue, first.HandoffTTL, first.Inbox = true, blink, at.inbox
		b.queue(first)
		b.newUnitWaiter(1, 2, at.inbox)
		other := b.newUnitWaiter(1, 2, "")
		b.free(holder)
		b.free(stays) // now the units suffice for the process's second waiter, which does not react either
		b.sleep(blink)
		b.queue(b.units(2, 2))
		b.checkHolds(other, "renewal by the other process's waiter")
	}},
	{name: "a waiter is told its grant at its inbox", needs: allOf(permits, notifies, mintsFences), check: func(b *bench) {
		at := b.listen(b.Store)
		holder, before := b.permit(2, 2)
		first, second := b.newUnitWaiter(1, 2, at.inbox), b.newUnitWaiter(1, 2, at.inbox)
		b.free(holder)
		one, two := at.expectGrant(first), at.expectGrant(second)
		if one.Fence <= before.Fence || two.Fence <= one.Fence {
			b.Fatalf("fences %d and %d after %d", one.Fence, two.Fence, before.Fence)
		}
		if g := b.acquireSoon(first, "acquire by an owner that was handed the permit"); g.Fence != one.Fence {
			b.Fatalf("told of fence %d, the permit has %d", one.Fence, g.Fence)
		}
	}},
	{name: "a waiter whose process is gone keeps no units from the others", needs: allOf(permits, notifies), check: func(b *bench) {
		holder, _ := b.permit(1, 2)
		heavy := b.newUnitWaiter(2, 2, "nobody:"+owner())
		light, _ := b.permit(1, 2) // this acquire notices that the process of heavy is gone
		b.free(holder)
		b.free(light)
		b.checkState(b.renew(heavy), store.NotOurs, "renewal by a waiter whose process is gone")
	}},
	{name: "a head that stands still while units are free loses its place", needs: allOf(permits, notifies), check: func(b *bench) {
		at := b.listen(b.Store)
		b.permit(1, 2)
		heavy := b.newUnitWaiter(2, 2, at.inbox) // the process of heavy is subscribed, but never asks again
		light := b.newUnitWaiter(1, 2, "")
		b.queue(light)
		at.expectHead(heavy, time.Millisecond) // the head is notified to ask at once
		b.sleep(3100 * time.Millisecond)
		b.acquireSoon(light, "acquire by the waiter behind the head")
	}},
	{name: "the process behind a head that does not fit is notified when to look after it", needs: allOf(permits, notifies, hasProcesses), check: func(b *bench) {
		at, other := b.listen(b.Store), b.listen(b.Another(b.TB))
		b.permit(1, 2)
		holder, _ := b.permit(1, 2)
		heavy := b.newUnitWaiter(2, 2, at.inbox)
		b.newUnitWaiter(1, 2, at.inbox) // this waiter is of the same process: if that process does not react, neither does the waiter
		next := b.newUnitWaiter(1, 2, other.inbox)
		b.free(holder)
		at.expectHead(heavy, time.Millisecond)
		other.expectHead(next, 3*time.Second)
	}},
	{name: "the waiter behind a head that leaves is notified", needs: allOf(permits, notifies, hasProcesses), check: func(b *bench) {
		at, other := b.listen(b.Store), b.listen(b.Another(b.TB))
		b.permit(2, 2)
		first, next := b.newUnitWaiter(1, 2, at.inbox), b.newUnitWaiter(1, 2, other.inbox)
		b.checkState(b.release(first), store.NotOurs, "release by a waiter")
		e := other.nextEvent("the event for the new head")
		if e.Kind != store.EventHead || e.Owner != next.Owner || e.HandoffTTL <= 0 || e.HandoffTTL > ttl {
			b.Fatalf("%v, want an event for the waiter behind it, within %v", e, ttl)
		}
	}},
	{name: "a permit that is kept keeps its units", needs: allOf(permits, atLeast), check: func(b *bench) {
		heavy, g := b.permit(2, 3)
		b.permit(1, 3)
		heavy.KeepFor = 2 * blink
		b.free(heavy)
		b.checkState(b.release(heavy), store.NotOurs, "second release")
		if refused := b.queue(b.units(1, 3)); !refused.Holder.Kept || refused.Holder.Left > 2*blink {
			b.Fatalf("the refusal names %+v, and not the units that are kept", refused.Holder)
		}
		for _, p := range b.info().Permits {
			if p.Fence == g.Fence && !p.Kept {
				b.Fatalf("%+v is not kept", p)
			}
		}
		b.sleep(2 * blink)
		b.permit(2, 3)
	}},
	{name: "work that is done sends away the waiters with OnceFor, and the holders go on", needs: allOf(permits, marksDone), check: func(b *bench) {
		worker, other := b.units(1, 2), b.units(1, 2)
		worker.OnceFor, other.OnceFor = ttl, ttl
		b.acquireSoon(worker, "acquire with OnceFor")
		b.acquireSoon(other, "acquire with OnceFor")
		worker.Complete = true
		b.free(worker)
		b.checkState(b.renew(other), store.Granted, "renewal by the other holder")
		late := b.units(1, 2)
		late.OnceFor = ttl
		b.checkState(b.acquire(late), store.Done, "acquire of work that is done")
		b.permit(1, 2) // an owner without OnceFor can still get a permit
	}},
	{name: "an undone owner takes no unit later", needs: allOf(permits, refusesLate), check: func(b *bench) {
		c := b.units(1, 2)
		c.TombstoneTTL = time.Minute
		b.checkState(b.release(c), store.NotOurs, "undo before the acquire")
		b.checkState(b.acquire(c), store.Undone, "late acquire")
		b.permit(2, 2)
	}},
	{name: "one permit is revoked, and the others stay", needs: allOf(permits, breaks), check: func(b *bench) {
		c, g := b.permit(1, 2)
		other, _ := b.permit(1, 2)
		first := b.newUnitWaiter(1, 2, "")
		b.checkState(b.breakHolder(g.Fence, "drill"), store.Released, "break")
		b.checkState(b.breakHolder(g.Fence, "drill"), store.NotOurs, "second break")
		b.checkHolds(first, "renewal by the owner that has waited")
		c.TombstoneTTL = time.Minute // as for an undo, which must not hide the reason
		for _, told := range []store.Grant{b.renew(c), b.release(c), b.acquire(c)} {
			if b.checkState(told, store.Revoked, "call of a broken holder"); told.Reason != "drill" {
				b.Fatalf("the reason is %q", told.Reason)
			}
		}
		b.checkHolds(other, "renewal by the other holder")
	}},
	{name: "a permit that has run out is not shown, and a revocation takes it back", needs: allOf(permits, breaks), check: func(b *bench) {
		c := b.units(1, 2)
		c.TTL = blink
		b.acquireSoon(c, "acquire of a free unit")
		_, other := b.permit(1, 2)
		heavy := b.newUnitWaiter(2, 2, "")
		b.sleep(blink)
		if i := b.info(); len(i.Permits) != 1 || i.Used != 1 || i.Permits[0].Fence != other.Fence {
			b.Fatalf("%+v, want the other permit only", i)
		}
		b.checkState(b.breakHolder(other.Fence, "drill"), store.Released, "break")
		b.checkHolds(heavy, "renewal by the owner that has waited for both units")
	}},
	{name: "inspection shows all permits", needs: allOf(permits, breaks), check: func(b *bench) {
		c := b.units(2, 5)
		c.Metadata = "who: me|1 ü \n"
		first := b.acquireSoon(c, "acquire of free units")
		_, second := b.permit(1, 4)
		b.newUnitWaiter(3, 4, "")
		i := b.info()
		if !i.Held || i.Used != 3 || i.Limit != 4 || len(i.Permits) != 2 || i.Waiters != 1 {
			b.Fatalf("%+v, want 3 units of 4 in 2 permits", i)
		}
		by := map[uint64]store.Permit{}
		for _, p := range i.Permits {
			by[p.Fence] = p
		}
		p, q := by[first.Fence], by[second.Fence]
		if p.Weight != 2 || p.Limit != 5 || p.Metadata != c.Metadata || p.Left <= 0 || p.Left > ttl || p.Since.IsZero() || q.Weight != 1 || q.Limit != 4 {
			b.Fatalf("%+v and %+v", p, q)
		}
		if text := fmt.Sprintf("%+v", i); strings.Contains(text, c.Owner) {
			b.Fatal("inspection shows a token")
		}
	}},
	{name: "a foreign holder keeps all permits out", needs: allOf(permits, foreign), check: func(b *bench) {
		b.Occupy(b.TB, b.key, blink)
		c := b.newUnitWaiter(1, 3, "")
		b.sleep(blink)
		b.acquireSoon(c, "acquire after the foreign holder")
		b.permit(2, 3)
	}},
	{name: "permits whose answers were lost are found again", needs: allOf(permits, losesReplies), check: func(b *bench) {
		c := b.units(1, 2)
		b.LoseReply(b.TB, locker.OpAcquire, b.key)
		if _, err := b.Store.Acquire(b.Context(), c); err == nil {
			b.Fatal("the answer was not lost")
		}
		b.acquireSoon(c, "repeated acquire")
		b.permit(1, 2)
		b.queue(b.units(1, 2))
	}},
	{name: "nothing is left when the last permit is released", needs: allOf(permits, counts), check: func(b *bench) {
		one, _ := b.permit(1, 2)
		two, _ := b.permit(1, 2)
		w := b.newUnitWaiter(2, 2, "")
		b.free(one)
		b.free(two)
		b.free(w)
		if n := b.Queued(b.TB, b.key); n > 0 {
			b.Fatalf("%d entries in the queue", n)
		}
		if i := b.info(); i.Held || i.Used > 0 || len(i.Permits) > 0 {
			b.Fatalf("%+v", i)
		}
	}},
}

// units returns the claim of a new owner that asks for weight units, with the given limit.
func (b *bench) units(weight, limit int) store.Claim {
	c := b.claim(owner())
	c.Weight, c.Limit = weight, limit
	return c
}

// permit acquires weight free units for a new owner, with the given limit. It returns the claim and
// the grant.
func (b *bench) permit(weight, limit int) (store.Claim, store.Grant) {
	b.Helper()
	c := b.units(weight, limit)
	return c, b.acquireSoon(c, fmt.Sprintf("acquire of %d units of %d", weight, limit))
}

// newUnitWaiter makes a new owner wait for weight units, with the given limit, and returns its
// claim. The owner is notified at inbox.
func (b *bench) newUnitWaiter(weight, limit int, inbox string) store.Claim {
	b.Helper()
	c := b.waiter(inbox)
	c.Weight, c.Limit = weight, limit
	b.queue(c)
	return c
}
