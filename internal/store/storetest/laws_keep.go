package storetest

import (
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// keepLaws concern what a release leaves on the server: a kept key, or a mark that the work is
// done.
var keepLaws = []law{
	{name: "a kept key stays busy without an owner, and runs out", needs: atLeast, check: func(b *bench) {
		c, _ := b.newHolder()
		c.KeepFor = 100 * time.Millisecond
		b.checkState(b.release(c), store.Released, "release with Keep")
		other := b.claim(owner())
		g := b.acquire(other)
		if g.State == store.Busy && g.Holder.Foreign {
			b.Fatal("the kept key looks as if another library held it")
		}
		b.checkState(b.renew(c), store.NotOurs, "renewal after the release")
		if g.State == store.Granted { // on a slow machine, the kept key has run out already
			b.release(other)
		}
		b.checkState(b.release(c), store.NotOurs, "second release")
		next := b.claim(owner())
		b.eventually(10*time.Second, "the kept key ran out", func() bool { return b.acquire(next).State == store.Granted })
	}},
	{name: "keeping a key does not shorten or lengthen what was asked", needs: atLeast, check: func(b *bench) {
		c, _ := b.newHolder()
		c.KeepFor = 10 * time.Second
		b.checkState(b.release(c), store.Released, "release with Keep")
		// Several servers need not get the release at the same time, and the last of them decides.
		left := b.holderLeft()
		for until := time.Now().Add(2 * time.Second); left > 10*time.Second && time.Now().Before(until); left = b.holderLeft() {
			<-time.After(5 * time.Millisecond)
		}
		if left > 10*time.Second || left < 5*time.Second {
			b.Fatalf("%v left of 10s", left)
		}
	}},
	{name: "work that is done is not granted again to an acquire with OnceFor", needs: marksDone, check: func(b *bench) {
		c := b.claim(owner())
		c.OnceFor = time.Minute
		b.acquireSoon(c, "acquire with OnceFor")
		c.Complete = true
		b.checkState(b.release(c), store.Released, "release with Complete")
		second := b.claim(owner())
		second.OnceFor = time.Minute
		b.checkState(b.acquire(second), store.Done, "acquire with OnceFor after Complete")
		b.newHolder() // an owner without OnceFor is not affected
	}},
	{name: "work that failed is granted again", needs: marksDone, check: func(b *bench) {
		c := b.claim(owner())
		c.OnceFor = time.Minute
		b.acquireSoon(c, "acquire with OnceFor")
		b.checkState(b.release(c), store.Released, "release without Complete")
		b.checkState(b.acquire(b.claim(owner())), store.Granted, "acquire after a failure")
	}},
	{name: "an owner that lost the lease cannot mark the work as done", needs: marksDone, check: func(b *bench) {
		c := b.claim(owner())
		c.OnceFor, c.Complete = time.Minute, true
		b.checkState(b.release(c), store.NotOurs, "Complete by an owner that does not hold")
		c.Owner, c.Complete = owner(), false
		b.acquireSoon(c, "acquire with OnceFor")
	}},
	{name: "a repeated Complete learns that the mark is there", needs: marksDone, check: func(b *bench) {
		c := b.claim(owner())
		c.OnceFor = time.Minute
		b.acquireSoon(c, "acquire with OnceFor")
		c.Complete = true
		b.checkState(b.release(c), store.Released, "release with Complete")
		b.checkState(b.release(c), store.Done, "repeated release with Complete")
	}},
	{name: "a done mark runs out", needs: marksDone, check: func(b *bench) {
		c := b.claim(owner())
		c.OnceFor = 50 * time.Millisecond
		b.acquireSoon(c, "acquire with OnceFor")
		c.Complete = true
		b.checkState(b.release(c), store.Released, "release with Complete")
		next := b.claim(owner())
		next.OnceFor = time.Minute
		b.eventually(time.Minute, "the mark ran out", func() bool {
			g, _, err := ask(b, b.Store.Acquire, next) // nodes with different marks may disagree at first
			return err == nil && g.State == store.Granted
		})
	}},
}
