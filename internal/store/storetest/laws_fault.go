package storetest

import (
	"errors"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// faultLaws concern holders of other libraries, data that is no lock, and replies that are lost.
var faultLaws = []law{
	{name: "a foreign holder is respected, and never disturbed", needs: foreign, check: func(b *bench) {
		b.Occupy(b.TB, b.key, ttl)
		c := b.claim(owner())
		if g := b.checkState(b.acquire(c), store.Busy, "acquire of a foreign key"); b.Can.Left && (!g.Holder.Foreign || g.Holder.Left <= 0) {
			b.Fatalf("holder %+v is not foreign", g.Holder)
		}
		b.checkState(b.renew(c), store.NotOurs, "renewal of a foreign key")
		c.TombstoneTTL = time.Minute
		if b.release(c); b.holderLeft() <= 0 {
			b.Fatal("the foreign holder is gone")
		}
	}},
	{name: "a foreign holder without end is busy without end", needs: foreign, check: func(b *bench) {
		b.Occupy(b.TB, b.key, 0)
		if left := b.holderLeft(); left >= 0 {
			b.Fatalf("%v left", left)
		}
	}},
	{name: "data that is no lock is refused, and stays", needs: spoils, check: func(b *bench) {
		intact := b.Spoil(b.TB, b.key)
		_, _, err := ask(b, b.Store.Acquire, b.claim(owner()))
		var no *store.Refusal
		refused := errors.As(err, &no) && !no.Temporary
		// A server whose answer was lost may have granted its part of the key, for all that the
		// Store knows. Then the Store cannot refuse, but its error names the cause all the same.
		if !refused && !b.Losses.hasLost() || !errors.Is(err, locker.ErrInvalidKey) {
			b.Fatalf("acquire: %v, want a refusal that is ErrInvalidKey", err)
		}
		c := b.claim(owner())
		b.checkState(b.renew(c), store.NotOurs, "renewal of data that is no lock")
		c.TombstoneTTL = time.Minute
		b.checkState(b.release(c), store.NotOurs, "undo of data that is no lock")
		if !intact() {
			b.Fatal("the data is gone")
		}
	}},

	{name: "an acquire whose answer was lost is found again, with its fence", needs: losesReplies, check: func(b *bench) {
		c := b.claim(owner())
		b.LoseReply(b.TB, locker.OpAcquire, b.key)
		_, err := b.Store.Acquire(b.Context(), c)
		if no := (*store.Refusal)(nil); err == nil || errors.As(err, &no) {
			b.Fatalf("acquire: %v, want an error that leaves it open whether the call ran", err)
		}
		held := b.acquire(b.claim(owner()))
		b.checkState(held, store.Busy, "acquire by a stranger meanwhile")
		if g := b.acquireSoon(c, "repeated acquire"); g.Fence != held.Holder.Fence {
			b.Fatalf("fence %d became %d", held.Holder.Fence, g.Fence)
		}
	}},
	{name: "a release whose answer was lost has happened", needs: losesReplies, check: func(b *bench) {
		c, _ := b.newHolder()
		b.LoseReply(b.TB, locker.OpRelease, b.key)
		if g, err := b.Store.Release(b.Context(), c); err == nil {
			b.Fatalf("release answered %v although its answer was lost", g.State)
		}
		b.checkState(b.release(c), store.NotOurs, "repeated release")
	}},
}
