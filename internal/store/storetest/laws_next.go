package storetest

import (
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// nextLaws concern a release that queues another claim of its process in the same step.
var nextLaws = []law{
	{name: "a Store says CarriesNext if its releases carry Next, and only then", check: func(b *bench) {
		if says := store.CapabilitiesOf(b.Store).CarriesNext; says != b.Can.Next {
			b.Fatalf("CarriesNext: %v, Capabilities.Next: %v; the Engine sends Next only with CarriesNext", says, b.Can.Next)
		}
	}},
	{name: "a release with Next queues behind all waiters", needs: follows, check: func(b *bench) {
		holder, before := b.newHolder()
		first, second := b.newWaiter(""), b.newWaiter("")
		next := b.waiter("")
		g := b.freeWithNext(holder, next)
		b.checkState(g, store.Busy, "the answer to Next")
		if g.Place != 2 { // the first waiter has the key
			b.Fatalf("place %d, want 2", g.Place)
		}
		if g.At.Before(before.At) {
			b.Fatalf("at %v, by the same clock after %v", g.At, before.At)
		}
		for _, w := range []store.Claim{first, second, next} {
			b.checkHolds(w, "renewal by an owner that has waited longest")
			b.free(w)
		}
		b.newHolder()
	}},
	{name: "a release with Next and without waiters grants at once", needs: follows, check: func(b *bench) {
		holder, before := b.newHolder()
		next := b.waiter("")
		next.FenceCount = 3
		g := b.freeWithNext(holder, next)
		b.checkState(g, store.Granted, "the answer to Next")
		if last := before.Fence + uint64(before.FenceCount) - 1; b.Can.Fence && (g.Fence <= last || g.FenceCount != 3) {
			b.Fatalf("fence %d block %d after %d", g.Fence, g.FenceCount, last)
		}
		if left := b.holderLeft(); left <= hand {
			b.Fatalf("%v left: that was no hand-over, so it has the whole TTL", left)
		}
		b.checkState(b.renew(holder), store.NotOurs, "renewal after the release")
		b.checkState(b.renew(next), store.Granted, "renewal by the next")
		b.free(next)
		b.newHolder()
	}},
	{name: "a release with Next grants at once when all waiters are gone", needs: allOf(notifies, follows), check: func(b *bench) {
		holder, _ := b.newHolder()
		b.newWaiter("nobody:" + owner())
		next := b.waiter("")
		b.checkState(b.freeWithNext(holder, next), store.Granted, "the answer to Next")
		b.checkState(b.renew(next), store.Granted, "renewal by the next")
	}},
	{name: "an undone Next is refused, and the others are served", needs: allOf(follows, refusesLate), check: func(b *bench) {
		holder, _ := b.newHolder()
		first := b.newWaiter("")
		next := b.waiter("")
		undoing := next
		undoing.TombstoneTTL = ttl
		b.checkState(b.release(undoing), store.NotOurs, "undo before the release with Next")
		b.checkState(b.freeWithNext(holder, next), store.Undone, "the answer to Next")
		b.checkHolds(first, "renewal by an owner that waited")
		b.free(first)
		b.checkState(b.renew(next), store.NotOurs, "renewal by the undone Next")
		b.newHolder()
	}},
	{name: "a release that finds nothing queues no Next", needs: follows, check: func(b *bench) {
		holder, _ := b.newHolder()
		stranger, next := b.claim(owner()), b.waiter("")
		stranger.Next = &next
		if g := b.checkState(b.release(stranger), store.NotOurs, "release by a stranger"); g.Next != nil {
			b.Fatalf("Next is %q although nothing was released", g.Next.State)
		}
		b.free(holder)
		b.checkState(b.renew(next), store.NotOurs, "renewal by the stranger's Next")
		b.newHolder()
	}},
	{name: "a release with Next whose answer was lost has queued it once", needs: allOf(follows, losesReplies), check: func(b *bench) {
		holder, _ := b.newHolder()
		first, next := b.newWaiter(""), b.waiter("")
		releasing := holder
		releasing.Next = &next
		b.LoseReply(b.TB, locker.OpRelease, b.key)
		if g, err := b.Store.Release(b.Context(), releasing); err == nil {
			b.Fatalf("release answered %v although its answer was lost", g.State)
		}
		last := b.newWaiter("")
		b.checkState(b.release(releasing), store.NotOurs, "repeated release")
		if g := b.queue(next); g.Place != 1 { // the first waiter has the key
			b.Fatalf("place %d, want 1", g.Place)
		}
		for _, w := range []store.Claim{first, next, last} {
			b.checkHolds(w, "renewal by an owner that has waited longest")
			b.free(w)
		}
		b.newHolder()
	}},
}

// freeWithNext releases the key, which holder has, and claims it again for next in one step. It
// returns the answer to next.
func (b *bench) freeWithNext(holder, next store.Claim) store.Grant {
	b.Helper()
	holder.Next = &next
	g := b.checkState(b.release(holder), store.Released, "release with Next")
	if g.Next == nil {
		b.Fatal("no answer to Next")
	}
	return *g.Next
}
