package lockertest

import (
	"time"

	"github.com/latchkit/latchkit/locker"
)

// togetherLaws speak of Stores that take several keys in one step.
var togetherLaws = []law{
	{says: "several free keys are granted together", needs: together, check: func(b *bench) {
		cs := b.claims(5)
		b.states(b.acquireAll(cs), locker.Granted, locker.Granted, locker.Granted, locker.Granted, locker.Granted)
		for _, c := range cs {
			b.key = c.Key
			b.want(b.acquire(b.claim(owner())), locker.Busy, "acquire of a key that was granted with others")
			b.want(b.renew(c), locker.Granted, "renewal by the holder of several")
			b.free(c)
			b.granted()
		}
	}},
	{says: "fences grow with every grant of several keys", needs: all(together, fence), check: func(b *bench) {
		last := make(map[string]uint64)
		for round := range 10 {
			cs := b.claims(3)
			for i, g := range b.acquireAll(cs) {
				if g.Fence <= last[cs[i].Key] {
					b.Fatalf("round %d: fence %d of %s after %d", round, g.Fence, cs[i].Key, last[cs[i].Key])
				}
				last[cs[i].Key] = g.Fence + uint64(g.Block) - 1
				b.free(cs[i])
			}
		}
	}},
	{says: "none of several keys is granted when one is held", needs: together, check: func(b *bench) {
		cs := b.claims(3)
		other := b.claim(owner())
		other.Key = cs[1].Key
		b.gets(other, "acquire of a free key")
		gs := b.acquireAll(cs)
		b.states(gs, locker.NotOurs, locker.Busy, locker.NotOurs)
		if gs[1].Holder.Left <= 0 {
			b.Fatalf("the holder has %v left", gs[1].Holder.Left)
		}
		for _, c := range []locker.Claim{cs[0], cs[2]} {
			b.want(b.renew(c), locker.NotOurs, "renewal of a key that was not granted with others")
			c.Owner = owner()
			b.gets(c, "acquire of a key that was not granted with others")
		}
	}},
	{says: "who wants several keys does not overtake who waits for one", needs: all(together, queues), check: func(b *bench) {
		cs := b.claims(2)
		b.key = cs[1].Key
		holder, _ := b.granted()
		lapses := b.waiter("")
		lapses.Hand = blink
		b.queue(lapses)
		b.queued("")
		b.free(holder)
		b.states(b.acquireAll(cs), locker.NotOurs, locker.Busy)
		b.pass(blink) // the key is free, and nobody has found that out yet
		gs := b.acquireAll(cs)
		b.states(gs, locker.NotOurs, locker.Busy)
		if gs[1].Holder.Left != 0 {
			b.Fatalf("positive control: a holder has %v left", gs[1].Holder.Left)
		}
	}},
	{says: "owners that ask for several keys again get the same grants again", needs: together, check: func(b *bench) {
		cs := b.claims(3)
		first := b.acquireAll(cs)
		for i, g := range b.acquireAll(cs) {
			if b.want(g, locker.Granted, "second acquire of the same owners"); g.Fence != first[i].Fence || g.Block != first[i].Block {
				b.Fatalf("fence %d block %d became %d, %d", first[i].Fence, first[i].Block, g.Fence, g.Block)
			}
		}
	}},
	{says: "an acquire of several keys that comes after the undo of one takes nothing", needs: all(together, undo), check: func(b *bench) {
		cs := b.claims(3)
		late := cs[2]
		late.Undo = time.Minute
		b.want(b.release(late), locker.NotOurs, "undo before the acquire")
		b.states(b.acquireAll(cs), locker.NotOurs, locker.NotOurs, locker.Undone)
	}},
	{says: "none of several keys is granted when the work of one is done", needs: all(together, once), check: func(b *bench) {
		cs := b.claims(2)
		first := cs[0]
		first.Owner, first.Once = owner(), time.Minute
		b.gets(first, "acquire with Once")
		first.Complete = true
		b.want(b.release(first), locker.Released, "release with Complete")
		cs[0].Once = time.Minute
		b.states(b.acquireAll(cs), locker.Done, locker.NotOurs)
	}},
}

// claims are those of fresh owners for n keys that a cluster keeps in one slot.
func (b *bench) claims(n int) []locker.Claim {
	var cs []locker.Claim
	for i := range n {
		c := b.claim(owner())
		c.Key = "{" + b.key + "}:" + string(rune('a'+i))
		cs = append(cs, c)
	}
	return cs
}

func (b *bench) acquireAll(cs []locker.Claim) []locker.Grant {
	b.Helper()
	gs, err := b.Store.(locker.Several).AcquireAll(b.Context(), cs)
	if err != nil {
		b.Fatalf("acquire of several keys: %v", err)
	}
	if len(gs) != len(cs) {
		b.Fatalf("acquire of several keys: %d answers to %d claims", len(gs), len(cs))
	}
	return gs
}

func (b *bench) states(gs []locker.Grant, want ...locker.State) {
	b.Helper()
	for i, g := range gs {
		b.want(g, want[i], "acquire of several keys, key "+string(rune('a'+i)))
	}
}
