package storetest

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// laws are all laws that Run checks. The last group concerns what a Locker over the Store promises
// to its users. All other groups concern the Store itself.
var laws = slices.Concat(stepLaws, keepLaws, revokeLaws, faultLaws, queueLaws, handLaws, notifyLaws, readerLaws, permitLaws, lookLaws, lockerLaws)

// stepLaws concern the steps of one lease: acquire, renew and release, and its fence.
var stepLaws = []law{
	// laws about acquire
	{name: "a free key is granted", check: func(b *bench) {
		b.newHolder()
	}},
	{name: "a held key is busy and says how long its holder has", needs: showsLeft, check: func(b *bench) {
		b.newHolder()
		if left := b.holderLeft(); left <= 0 || left > ttl {
			b.Fatalf("the holder has %v left of %v", left, ttl)
		}
	}},
	{name: "an owner that asks again gets the same grant again", check: func(b *bench) {
		c, first := b.newHolder()
		again := b.acquireSoon(c, "second acquire of the same owner")
		if again.Fence != first.Fence || again.FenceCount != first.FenceCount {
			b.Fatalf("fence %d block %d became %d, %d", first.Fence, first.FenceCount, again.Fence, again.FenceCount)
		}
	}},
	{name: "an owner that asks again for longer gets longer", check: func(b *bench) {
		c, _ := b.newHolder()
		c.TTL *= 2
		b.acquireSoon(c, "second acquire of the same owner")
		if left := b.holderLeft(); left <= ttl {
			b.Fatalf("%v left after asking for %v", left, c.TTL)
		}
	}},
	{name: "an owner whose name begins or continues the holder's owns nothing", check: func(b *bench) {
		c, _ := b.newHolder()
		for _, other := range []string{c.Owner[:len(c.Owner)-1], c.Owner[:1], c.Owner + "X"} {
			b.checkState(b.acquire(b.claim(other)), store.Busy, "acquire with a part of the holder's name")
			b.checkState(b.renew(b.claim(other)), store.NotOurs, "renewal with a part of the holder's name")
			b.checkState(b.release(b.claim(other)), store.NotOurs, "release with a part of the holder's name")
		}
		b.checkState(b.renew(c), store.Granted, "renewal by the holder")
	}},
	{name: "a lease without renewals expires", check: func(b *bench) {
		c := b.claim(owner())
		c.TTL = 50 * time.Millisecond
		b.acquireSoon(c, "acquire of a free key")
		next := b.claim(owner())
		b.eventually(10*time.Second, "the lease ran out", func() bool { return b.acquire(next).State == store.Granted })
		b.checkState(b.renew(c), store.NotOurs, "renewal after the lease ran out")
		b.checkState(b.release(c), store.NotOurs, "release after the lease ran out")
		b.checkState(b.renew(next), store.Granted, "renewal by the next holder")
	}},
	{name: "owners that ask at the same time are granted one at a time", check: func(b *bench) {
		var inside, served atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 20 {
					c := b.claim(owner())
					g, _, err := ask(b, b.Store.Acquire, c)
					if err != nil || g.State != store.Granted {
						continue
					}
					if inside.Add(1) > 1 {
						b.Error("two owners were granted the key at once")
					}
					served.Add(1)
					inside.Add(-1)
					if _, _, err := ask(b, b.Store.Release, c); err != nil {
						b.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if served.Load() == 0 {
			b.Fatal("no waiter was granted the key")
		}
	}},
	{name: "keys do not concern each other", check: func(b *bench) {
		b.newHolder()
		b.key += ":other"
		b.newHolder()
	}},

	// laws about fences
	{name: "fences grow with every grant of a key", needs: mintsFences, check: func(b *bench) {
		var last uint64
		for i := range 20 {
			c, g := b.newHolder()
			if g.Fence <= last {
				b.Fatalf("grant %d has fence %d after %d", i, g.Fence, last)
			}
			last = g.Fence + uint64(g.FenceCount) - 1
			b.checkState(b.release(c), store.Released, "release by the holder")
		}
	}},
	{name: "fences grow also when a lease ran out", needs: mintsFences, check: func(b *bench) {
		c := b.claim(owner())
		c.TTL = 20 * time.Millisecond
		first := b.acquireSoon(c, "acquire of a free key")
		next := b.claim(owner())
		b.eventually(10*time.Second, "the lease ran out", func() bool { return b.acquire(next).State == store.Granted })
		if again := b.acquire(next); again.Fence <= first.Fence {
			b.Fatalf("fence %d after %d", again.Fence, first.Fence)
		}
	}},
	{name: "a block of fences is reserved whole", needs: mintsFences, check: func(b *bench) {
		// The block of fences reaches 90 ms ahead of the clock. If the block were smaller, the
		// clock could advance beyond it, and hide that a block was given twice.
		const block = 90_000
		c := b.claim(owner())
		c.FenceCount = block
		g := b.acquireSoon(c, "acquire of a block")
		if g.FenceCount != block {
			b.Fatalf("%d fences reserved of %d", g.FenceCount, block)
		}
		b.release(c)
		if _, next := b.newHolder(); next.Fence < g.Fence+block {
			b.Fatalf("fence %d lies in the block %d…%d", next.Fence, g.Fence, g.Fence+block-1)
		}
	}},
	{name: "a block does not run far ahead of the clock", needs: mintsFences, check: func(b *bench) {
		c := b.claim(owner())
		c.FenceCount = 10_000_000
		if g := b.acquireSoon(c, "acquire of a block"); g.FenceCount != 1 {
			b.Fatalf("%d fences reserved: after a failover the counter would be ahead of the clock by 10 s", g.FenceCount)
		}
	}},
	{name: "a raised fence is never lowered", needs: allOf(mintsFences, raises), check: func(b *bench) {
		c, g := b.newHolder()
		b.release(c)
		f := store.CapabilitiesOf(b.Store)
		least := g.Fence + 10_000_000 // 10 s later than the fence, which is a clock in µs
		for _, to := range []uint64{least, 1} {
			if err := f.RaiseFence(b.Context(), b.key, to); err != nil {
				b.Fatal(err)
			}
		}
		if _, next := b.newHolder(); next.Fence <= least {
			b.Fatalf("fence %d after raising to %d", next.Fence, least)
		}
	}},

	// laws about renew
	{name: "a renewal lengthens a lease", check: func(b *bench) {
		c := b.claim(owner())
		c.TTL = 5 * time.Second
		b.acquireSoon(c, "acquire of a free key")
		c.TTL = ttl
		b.checkState(b.renew(c), store.Granted, "renewal by the holder")
		if left := b.holderLeft(); left <= 5*time.Second {
			b.Fatalf("%v left after a renewal by %v", left, ttl)
		}
	}},
	{name: "a renewal never shortens a lease", check: func(b *bench) {
		c, _ := b.newHolder()
		c.TTL = time.Second
		b.checkState(b.renew(c), store.Granted, "renewal by the holder")
		if left := b.holderLeft(); left <= 5*time.Second {
			b.Fatalf("%v left after a late, short renewal of a lease of %v", left, ttl)
		}
	}},
	{name: "a renewal never creates a lease", check: func(b *bench) {
		c := b.claim(owner())
		b.checkState(b.renew(c), store.NotOurs, "renewal of a free key")
		b.newHolder()
	}},
	{name: "a stranger cannot renew", check: func(b *bench) {
		b.newHolder()
		b.checkState(b.renew(b.claim(owner())), store.NotOurs, "renewal by a stranger")
	}},
	{name: "a batch of renewals is answered one by one, in order", check: func(b *bench) {
		base := b.key
		var claims []store.Claim
		for i := range 100 {
			b.key = base + string(rune('a'+i%26)) + string(rune('a'+i/26))
			c := b.claim(owner())
			if i%3 != 0 {
				b.acquireSoon(c, "acquire of a free key")
			}
			claims = append(claims, c)
		}
		grants, err := b.renewAll(claims)
		if err != nil {
			b.Fatal(err)
		}
		for i, g := range grants {
			want := store.Granted
			if i%3 == 0 {
				want = store.NotOurs
			}
			b.checkState(g, want, "renewal in a batch")
		}
	}},

	// laws about release
	{name: "a released key is free", check: func(b *bench) {
		c, _ := b.newHolder()
		b.checkState(b.release(c), store.Released, "release by the holder")
		b.newHolder()
	}},
	{name: "a second release finds no lease and has no effect", check: func(b *bench) {
		c, _ := b.newHolder()
		b.checkState(b.release(c), store.Released, "release by the holder")
		next, _ := b.newHolder()
		b.checkState(b.release(c), store.NotOurs, "second release")
		b.checkState(b.renew(next), store.Granted, "renewal by the next holder")
	}},
	{name: "a stranger cannot release the lease", check: func(b *bench) {
		c, _ := b.newHolder()
		b.checkState(b.release(b.claim(owner())), store.NotOurs, "release by a stranger")
		b.checkState(b.renew(c), store.Granted, "renewal by the holder")
	}},
	{name: "an undo frees the lease", needs: refusesLate, check: func(b *bench) {
		c, _ := b.newHolder()
		c.TombstoneTTL = time.Minute
		b.checkState(b.release(c), store.Released, "undo by the holder")
		b.newHolder()
	}},
	{name: "an acquire that comes after its undo takes nothing", needs: refusesLate, check: func(b *bench) {
		c := b.claim(owner())
		c.TombstoneTTL = time.Minute
		b.checkState(b.release(c), store.NotOurs, "undo before the acquire")
		b.checkState(b.acquire(c), store.Undone, "late acquire")
		b.checkState(b.acquire(c), store.Undone, "late acquire, again")
		b.newHolder()
	}},
	{name: "an undo never harms another owner", needs: refusesLate, check: func(b *bench) {
		late := b.claim(owner())
		c, _ := b.newHolder()
		late.TombstoneTTL = time.Minute
		b.checkState(b.release(late), store.NotOurs, "undo by an owner that never held")
		b.checkState(b.renew(c), store.Granted, "renewal by the holder")
	}},
}
