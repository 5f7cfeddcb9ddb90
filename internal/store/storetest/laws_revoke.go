package storetest

import "github.com/latchkit/latchkit/internal/store"

// revokeLaws concern what an operator sees of a holder, and how an operator ends its lease.
var revokeLaws = []law{
	{name: "inspection shows the holder", needs: breaks, check: func(b *bench) {
		if i := b.info(); i.Held {
			b.Fatalf("a free key is held: %+v", i)
		}
		_, g := b.newHolder()
		i := b.info()
		if !i.Held || i.Foreign || i.Kept || i.Fence != g.Fence || i.Left <= 0 || i.Left > ttl || i.Since.IsZero() {
			b.Fatalf("%+v, want the holder with fence %d", i, g.Fence)
		}
	}},
	{name: "a revoked holder loses the key and receives the reason", needs: breaks, check: func(b *bench) {
		c, g := b.newHolder()
		b.checkState(b.breakHolder(g.Fence, "maintenance"), store.Released, "break")
		for _, answer := range []store.Grant{b.renew(c), b.release(c), b.acquire(c)} {
			if b.checkState(answer, store.Revoked, "call of a revoked holder"); answer.Reason != "maintenance" {
				b.Fatalf("the reason is %q", answer.Reason)
			}
		}
		b.newHolder()
	}},
	{name: "a break hits only the holder it names", needs: breaks, check: func(b *bench) {
		first, g := b.newHolder()
		b.release(first)
		c, _ := b.newHolder()
		b.checkState(b.breakHolder(g.Fence, "too late"), store.NotOurs, "break of a holder that is gone")
		b.checkState(b.renew(c), store.Granted, "renewal by the present holder")
		b.release(c)
		b.checkState(b.breakHolder(g.Fence, "too late"), store.NotOurs, "break of a free key")
	}},
	{name: "a refused acquire returns the holder's metadata", needs: metadata, check: func(b *bench) {
		c := b.claim(owner())
		const text = "host:7 trace=00-ab:cd-01 \n {ü}"
		c.Metadata = text
		b.acquireSoon(c, "acquire with metadata")
		if h := b.acquire(b.claim(owner())).Holder; h.Metadata != text {
			b.Fatalf("metadata %q became %q", text, h.Metadata)
		}
	}},
}

func (b *bench) breakHolder(fence uint64, reason string) store.Grant {
	b.Helper()
	g, err := store.CapabilitiesOf(b.Store).Revoke(b.Context(), b.key, fence, reason)
	if err != nil {
		b.Fatalf("break: %v", err)
	}
	return g
}
