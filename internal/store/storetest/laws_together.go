package storetest

import (
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// togetherLaws concern Stores that take several keys in one step.
var togetherLaws = []law{
	{name: "several free keys are granted together", needs: takesTogether, check: func(b *bench) {
		cs := b.claims(5)
		b.states(b.acquireAll(cs), store.Granted, store.Granted, store.Granted, store.Granted, store.Granted)
		for _, c := range cs {
			b.key = c.Key
			b.checkState(b.acquire(b.claim(owner())), store.Busy, "acquire of a key that was granted with others")
			b.checkState(b.renew(c), store.Granted, "renewal by the holder of several")
			b.free(c)
			b.newHolder()
		}
	}},
	{name: "fences grow with every grant of several keys", needs: allOf(takesTogether, mintsFences), check: func(b *bench) {
		last := make(map[string]uint64)
		for round := range 10 {
			cs := b.claims(3)
			for i, g := range b.acquireAll(cs) {
				if g.Fence <= last[cs[i].Key] {
					b.Fatalf("round %d: fence %d of %s after %d", round, g.Fence, cs[i].Key, last[cs[i].Key])
				}
				last[cs[i].Key] = g.Fence + uint64(g.FenceCount) - 1
				b.free(cs[i])
			}
		}
	}},
	{name: "none of several keys is granted when one is held", needs: takesTogether, check: func(b *bench) {
		cs := b.claims(3)
		other := b.claim(owner())
		other.Key = cs[1].Key
		b.acquireSoon(other, "acquire of a free key")
		gs := b.acquireAll(cs)
		b.states(gs, store.NotOurs, store.Busy, store.NotOurs)
		if gs[1].Holder.Left <= 0 {
			b.Fatalf("the holder has %v left", gs[1].Holder.Left)
		}
		for _, c := range []store.Claim{cs[0], cs[2]} {
			b.checkState(b.renew(c), store.NotOurs, "renewal of a key that was not granted with others")
			c.Owner = owner()
			b.acquireSoon(c, "acquire of a key that was not granted with others")
		}
	}},
	{name: "an acquire of several keys does not overtake the waiter of one key", needs: allOf(takesTogether, queues), check: func(b *bench) {
		cs := b.claims(2)
		b.key = cs[1].Key
		holder, _ := b.newHolder()
		lapses := b.waiter("")
		lapses.HandoffTTL = blink
		b.queue(lapses)
		b.newWaiter("")
		b.free(holder)
		b.states(b.acquireAll(cs), store.NotOurs, store.Busy)
		b.sleep(blink) // the lease has run out, but no later call has made the server notice that
		gs := b.acquireAll(cs)
		b.states(gs, store.NotOurs, store.Busy)
		if gs[1].Holder.Left != 0 {
			b.Fatalf("positive control: a holder has %v left", gs[1].Holder.Left)
		}
	}},
	{name: "owners that ask for several keys again get the same grants again", needs: takesTogether, check: func(b *bench) {
		cs := b.claims(3)
		first := b.acquireAll(cs)
		for i, g := range b.acquireAll(cs) {
			if b.checkState(g, store.Granted, "second acquire of the same owners"); g.Fence != first[i].Fence || g.FenceCount != first[i].FenceCount {
				b.Fatalf("fence %d block %d became %d, %d", first[i].Fence, first[i].FenceCount, g.Fence, g.FenceCount)
			}
		}
	}},
	{name: "an acquire of several keys that comes after the undo of one takes nothing", needs: allOf(takesTogether, refusesLate), check: func(b *bench) {
		cs := b.claims(3)
		late := cs[2]
		late.TombstoneTTL = time.Minute
		b.checkState(b.release(late), store.NotOurs, "undo before the acquire")
		b.states(b.acquireAll(cs), store.NotOurs, store.NotOurs, store.Undone)
	}},
	{name: "none of several keys is granted when the work of one is done", needs: allOf(takesTogether, marksDone), check: func(b *bench) {
		cs := b.claims(2)
		first := cs[0]
		first.Owner, first.OnceFor = owner(), time.Minute
		b.acquireSoon(first, "acquire with OnceFor")
		first.Complete = true
		b.checkState(b.release(first), store.Released, "release with Complete")
		cs[0].OnceFor = time.Minute
		b.states(b.acquireAll(cs), store.Done, store.NotOurs)
	}},
}

// claims returns claims of n new owners, each for a key of its own, with all keys in one slot of a
// cluster.
func (b *bench) claims(n int) []store.Claim {
	var cs []store.Claim
	for i := range n {
		c := b.claim(owner())
		c.Key = "{" + b.key + "}:" + string(rune('a'+i))
		cs = append(cs, c)
	}
	return cs
}

func (b *bench) acquireAll(cs []store.Claim) []store.Grant {
	b.Helper()
	gs, err := store.CapabilitiesOf(b.Store).AcquireAll(b.Context(), cs)
	if err != nil {
		b.Fatalf("acquire of several keys: %v", err)
	}
	if len(gs) != len(cs) {
		b.Fatalf("acquire of several keys: %d answers to %d claims", len(gs), len(cs))
	}
	return gs
}

func (b *bench) states(gs []store.Grant, want ...store.State) {
	b.Helper()
	for i, g := range gs {
		b.checkState(g, want[i], "acquire of several keys, key "+string(rune('a'+i)))
	}
}
