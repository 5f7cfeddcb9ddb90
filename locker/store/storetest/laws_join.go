package storetest

import (
	"crypto/sha256"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

// joinLaws concern leases that calls in other processes join.
var joinLaws = []law{
	{name: "a call with the secret joins, and gets the lease's fence", needs: joinable, check: func(b *bench) {
		c, g := b.newHolder()
		p := b.delegated(c, locker.Delegation{Fence: g.Fence + 3, Depth: 1}, "open sesame")
		j := b.joiner(p)
		for range 2 { // the keeper of a joined lease repeats the same call
			joined := b.checkState(b.join(j), store.Granted, "join with the secret")
			if joined.Fence != g.Fence+3 || joined.Left <= 0 || joined.Left > ttl {
				b.Fatalf("joined with the fence %d and %v left, the lease has %d and %v", joined.Fence, joined.Left, g.Fence+3, ttl)
			}
		}
		b.checkState(b.leave(j), store.Released, "leaving")
		b.checkState(b.leave(j), store.NotOurs, "leaving again")
		b.checkState(b.renew(c), store.Granted, "renewal by the holder, after the other has left")
	}},
	{name: "a call with another secret, or none, does not join", needs: joinable, check: func(b *bench) {
		c, g := b.newHolder()
		b.delegated(c, locker.Delegation{Fence: g.Fence}, "open sesame")
		b.checkState(b.join(b.joiner(locker.Delegation{Secret: sha256.Sum256([]byte("open wheat"))})), store.NotOurs, "join with a wrong secret")
		b.checkState(b.join(b.joiner(locker.Delegation{})), store.NotOurs, "join without a secret and without the fence")
		b.checkState(b.join(b.joiner(locker.Delegation{Hold: g.Fence + 1, Fence: g.Fence})), store.NotOurs, "join with a wrong fence")
	}},
	{name: "a call with the holder's fence joins without a secret", needs: joinable, check: func(b *bench) {
		_, g := b.newHolder()
		joined := b.checkState(b.join(b.joiner(locker.Delegation{Hold: g.Fence, Fence: g.Fence + 2})), store.Granted, "join with the fence")
		if joined.Fence != g.Fence+2 {
			b.Fatalf("joined with the fence %d, delegated was %d", joined.Fence, g.Fence+2)
		}
	}},
	{name: "a secret is good for one key only", needs: joinable, check: func(b *bench) {
		c, g := b.newHolder()
		p := b.delegated(c, locker.Delegation{Fence: g.Fence}, "open sesame")
		other := b.claim(owner())
		other.Key += ":other"
		b.acquireSoon(other, "acquire of another key")
		j := b.joiner(p)
		j.Key = other.Key
		b.checkState(b.join(j), store.NotOurs, "join of another key's lease")
	}},
	{name: "a release ends the joins, and the next holder's lease is not theirs", needs: joinable, check: func(b *bench) {
		c, g := b.newHolder()
		p := b.delegated(c, locker.Delegation{Fence: g.Fence}, "open sesame")
		j, late := b.joiner(p), b.joiner(p)
		b.checkState(b.join(j), store.Granted, "join with the secret")
		b.free(c)
		b.checkState(b.join(j), store.NotOurs, "question of the joined owner, after the release")
		b.checkState(b.join(late), store.NotOurs, "join after the release")
		b.newHolder()
		b.checkState(b.join(j), store.NotOurs, "question of the joined owner, after the next grant")
		b.checkState(b.join(late), store.NotOurs, "join after the next grant")
		b.checkState(b.join(b.joiner(locker.Delegation{Hold: g.Fence, Fence: g.Fence})), store.NotOurs, "join with the old fence")
		b.checkState(b.leave(j), store.NotOurs, "leaving a lease that is over")
	}},
	{name: "a key that is kept without an owner cannot be joined", needs: allOf(joinable, atLeast), check: func(b *bench) {
		c, g := b.newHolder()
		p := b.delegated(c, locker.Delegation{Fence: g.Fence}, "open sesame")
		c.KeepFor = ttl
		b.checkState(b.release(c), store.Released, "release of a key that is kept")
		b.checkState(b.join(b.joiner(p)), store.NotOurs, "join with the secret")
		b.checkState(b.join(b.joiner(locker.Delegation{Hold: g.Fence, Fence: g.Fence})), store.NotOurs, "join with the fence")
	}},
	{name: "a foreign holder's lease cannot be joined", needs: allOf(joinable, foreign), check: func(b *bench) {
		b.Occupy(b, b.key, ttl)
		b.checkState(b.join(b.joiner(locker.Delegation{Secret: sha256.Sum256([]byte("open sesame"))})), store.NotOurs, "join with a secret")
		b.checkState(b.join(b.joiner(locker.Delegation{})), store.NotOurs, "join without")
	}},
	{name: "an expired secret admits no more joins, and existing joins stay", needs: joinable, check: func(b *bench) {
		c, g := b.newHolder()
		j := b.joiner(b.delegatedFor(c, locker.Delegation{Fence: g.Fence}, "long", ttl))
		b.checkState(b.join(j), store.Granted, "join in time")
		p := b.delegatedFor(c, locker.Delegation{Fence: g.Fence}, "short", 20*time.Millisecond)
		b.eventually(10*time.Second, "the secret's time is over", func() bool { return b.join(b.joiner(p)).State == store.NotOurs })
		b.checkState(b.join(j), store.Granted, "question of the joined owner")
	}},
	{name: "an owner without the lease cannot delegate it", needs: joinable, check: func(b *bench) {
		_, g := b.newHolder()
		stranger := b.claim(owner())
		b.checkState(b.delegate(stranger, locker.Delegation{Fence: g.Fence, Secret: sha256.Sum256([]byte("mine"))}, ttl), store.NotOurs, "delegation by a stranger")
		b.checkState(b.join(b.joiner(locker.Delegation{Secret: sha256.Sum256([]byte("mine"))})), store.NotOurs, "join by the stranger's secret")
	}},
	{name: "a joined owner delegates as often as allowed", needs: joinable, check: func(b *bench) {
		c, g := b.newHolder()
		first := b.joiner(b.delegated(c, locker.Delegation{Fence: g.Fence, Depth: 1}, "first"))
		b.checkState(b.join(first), store.Granted, "the first join")
		second := b.joiner(b.delegated(first, locker.Delegation{Fence: g.Fence, Depth: 9}, "second"))
		if joined := b.checkState(b.join(second), store.Granted, "the second join"); joined.Fence != g.Fence {
			b.Fatalf("the fence %d became %d", g.Fence, joined.Fence)
		}
		b.checkState(b.delegate(second, locker.Delegation{Fence: g.Fence, Secret: sha256.Sum256([]byte("third"))}, ttl), store.NotOurs, "the third delegation")
		b.checkState(b.leave(first), store.Released, "leaving of the first")
		b.checkState(b.join(second), store.Granted, "question of the second, which does not depend on the first")
	}},
	{name: "a joined owner can neither renew nor release the lease", needs: joinable, check: func(b *bench) {
		c, g := b.newHolder()
		j := b.joiner(b.delegated(c, locker.Delegation{Fence: g.Fence}, "open sesame"))
		b.checkState(b.join(j), store.Granted, "join with the secret")
		b.checkState(b.renew(j), store.NotOurs, "renewal by the joined owner")
		b.checkState(b.release(j), store.NotOurs, "release by the joined owner")
		b.checkState(b.renew(c), store.Granted, "renewal by the holder")
	}},
	{name: "a join does not lengthen the lease", needs: joinable, check: func(b *bench) {
		c := b.claim(owner())
		c.TTL = time.Second
		g := b.acquireSoon(c, "acquire of a free key")
		j := b.joiner(locker.Delegation{Hold: g.Fence, Fence: g.Fence})
		b.checkState(b.join(j), store.Granted, "join with the fence")
		b.eventually(10*time.Second, "the lease ran out under questions", func() bool { return b.join(j).State == store.NotOurs })
	}},
	{name: "data that is no lock is left alone by a join", needs: allOf(joinable, spoils), check: func(b *bench) {
		intact := b.Spoil(b, b.key)
		if g, err := b.Store.(store.Joiner).Join(b.Context(), b.joiner(locker.Delegation{})); err == nil && g.State != store.NotOurs {
			b.Fatalf("joined: %v", g.State)
		}
		if !intact() {
			b.Fatal("the data is gone")
		}
	}},
	{name: "a Locker's lease is joined, lost and left like others", needs: joinable, check: func(b *bench) {
		l := b.locker(locker.WithTTL(ttl))
		lease, err := l.Acquire(b.Context(), locker.Rule{Key: b.key})
		if err != nil {
			b.Fatal(err)
		}
		pass, err := lease.Delegate(b.Context(), sha256.Sum256([]byte("open sesame")), ttl, 0)
		if err != nil {
			b.Fatal(err)
		}
		shown := locker.Delegation{Secret: pass.Secret}
		first, err := l.Join(b.Context(), locker.Rule{Key: b.key}, shown)
		if err != nil {
			b.Fatal(err)
		}
		second, err := l.Join(b.Context(), locker.Rule{Key: b.key}, shown)
		if err != nil {
			b.Fatal(err)
		}
		if first.Fence() != lease.Fence() || second.Fence() != lease.Fence() {
			b.Errorf("fences %d, %d and %d", lease.Fence(), first.Fence(), second.Fence())
		}
		if err := first.Release(b.Context()); err != nil {
			b.Error(err)
		}
		if err := lease.Context().Err(); err != nil {
			b.Errorf("the holder's lease ended with the join: %v", err)
		}
		if err := lease.Release(b.Context()); err != nil {
			b.Error(err)
		}
		<-second.Context().Done()
		if err := second.Release(b.Context()); !endedAsLost(err) {
			b.Errorf("a join that outlived the lease was released: %v", err)
		}
	}},
}
