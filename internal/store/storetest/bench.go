package storetest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// bench is what a law works with: a fresh key, and methods for the steps.
type bench struct {
	testing.TB
	Harness
	key string
	// released is true after a release had no clear answer although a part of it may have happened.
	// The repeated release may then find that the lease is gone.
	released bool
}

// ttl is so long that a lease runs out only where a law waits for that, even on a slow machine.
const ttl = 30 * time.Second

// owner returns the token of a new owner.
func owner() string { return rand.Text() }

// claim returns a claim of owner for the law's key.
func (b *bench) claim(owner string) store.Claim {
	return store.Claim{Key: b.key, Owner: owner, TTL: ttl, FenceCount: 1}
}

// ask makes a step. If Losses has lost a call, and the step has no clear answer, ask repeats the
// step for some seconds, as an Engine does. The lost call may be one of an earlier step: a Store of
// several servers goes on with the other servers, and the missing answer shows later. The result
// began reports whether a step without a clear answer may have had an effect; it has none if its
// only call lost its request.
func ask[T any](b *bench, step func(context.Context, T) (store.Grant, error), c T) (g store.Grant, began bool, err error) {
	for until := time.Now().Add(5 * time.Second); ; <-time.After(5 * time.Millisecond) {
		if g, err = step(b.Context(), c); err == nil || !b.Losses.hasLost() || time.Now().After(until) {
			return g, began, err
		}
		if errors.Is(err, locker.ErrInvalidKey) { // no repetition helps
			return g, began, err
		}
		how, hit := b.Losses.takeHit()
		began = began || !hit || how == lostReply
	}
}

func (b *bench) acquire(c store.Claim) store.Grant {
	b.Helper()
	g, _, err := ask(b, b.Store.Acquire, c)
	if err != nil {
		b.Fatalf("acquire: %v", err)
	}
	return g
}

func (b *bench) renew(c store.Claim) store.Grant {
	b.Helper()
	g, _, err := ask(b, func(ctx context.Context, c store.Claim) (store.Grant, error) {
		gs, err := b.Store.Renew(ctx, []store.Claim{c})
		if err != nil || len(gs) != 1 {
			return store.Grant{}, cmp.Or(err, fmt.Errorf("%d answers to one claim", len(gs)))
		}
		return gs[0], gs[0].Err
	}, c)
	if err != nil {
		b.Fatalf("renew: %v", err)
	}
	return g
}

// renewAll renews the leases of cs. If Losses has lost a call, renewAll renews the leases again
// that have no answer.
func (b *bench) renewAll(cs []store.Claim) ([]store.Grant, error) {
	b.Helper()
	gs, err := b.Store.Renew(b.Context(), cs)
	if b.Losses.hasLost() {
		if err != nil {
			gs, err = slices.Repeat([]store.Grant{{Err: err}}, len(cs)), nil
		}
		for i := range gs {
			if gs[i].Err != nil {
				gs[i] = b.renew(cs[i])
			}
		}
	}
	if err == nil && len(gs) != len(cs) {
		b.Fatalf("renew: %d answers to %d claims", len(gs), len(cs))
	}
	return gs, err
}

func (b *bench) release(c store.Claim) store.Grant {
	b.Helper()
	g, began, err := ask(b, b.Store.Release, c)
	if err != nil {
		b.Fatalf("release: %v", err)
	}
	b.released = b.released || began
	return g
}

// checkState fails the law unless the answer g has the state s, and returns g. The parameter step
// names the step in the failure.
func (b *bench) checkState(g store.Grant, s store.State, step string) store.Grant {
	b.Helper()
	if s == store.Released && b.released && (g.State == store.NotOurs || g.State == store.Done) {
		return g // this release is the repetition of one that has happened
	}
	if g.State != s {
		b.Fatalf("%s: the Store answered %q, the law says %q", step, g.State, s)
	}
	return g
}

// acquireSoon acquires a key that is free, or soon will be. In a Store without queues, a refused
// owner may still have the vote of a node. This owner gives the vote back, so the key is free a
// moment later. The parameter step names the step in a failure.
func (b *bench) acquireSoon(c store.Claim, step string) store.Grant {
	b.Helper()
	g := b.acquire(c)
	for until := time.Now().Add(5 * time.Second); g.State == store.Busy && !b.Can.Queue && time.Now().Before(until); g = b.acquire(c) {
		<-time.After(5 * time.Millisecond)
	}
	return b.checkState(g, store.Granted, step)
}

// newHolder acquires the key for a new owner, and returns its claim and the grant. If the owner
// does not get the key, the law fails.
func (b *bench) newHolder() (store.Claim, store.Grant) {
	b.Helper()
	c := b.claim(owner())
	return c, b.acquireSoon(c, "acquire of a free key")
}

// holderLeft returns how long the holder's lease still lasts, from the answer to a refused caller.
func (b *bench) holderLeft() time.Duration {
	b.Helper()
	g := b.checkState(b.acquire(b.claim(owner())), store.Busy, "acquire of a held key")
	if b.Left != nil {
		return b.Left(b.TB, b.key)
	}
	return g.Holder.Left
}

// eventually waits until cond returns true, at most for limit. The parameter desc describes the
// condition in a failure.
func (b *bench) eventually(limit time.Duration, desc string, cond func() bool) {
	b.Helper()
	deadline := time.Now().Add(limit)
	for !cond() {
		if time.Now().After(deadline) {
			b.Fatalf("not within %v: %s", limit, desc)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// locker returns an Engine over the Store under test.
func (b *bench) locker(opts ...locker.Option) *locker.Engine {
	b.Helper()
	return lockertest.NewLocker(b.TB, b.Store, opts...)
}

// info returns what Inspect shows of the key.
func (b *bench) info() locker.Info {
	b.Helper()
	can := store.CapabilitiesOf(b.Store)
	if can.Inspect == nil {
		b.Fatal("the Harness says Revoke, but the Store has no Inspect")
	}
	i, err := can.Inspect(context.WithoutCancel(b.Context()), b.key)
	if err != nil {
		b.Fatalf("inspect: %v", err)
	}
	return i
}

// These are TTLs of hand-offs to waiters.
const (
	hand  = 10 * time.Second       // long enough to be confirmed on a slow machine
	blink = 500 * time.Millisecond // short enough to wait for, but longer than a few calls
)

// waiter returns the claim of a new owner that queues and is notified at inbox. If inbox is "", the
// owner is not notified.
func (b *bench) waiter(inbox string) store.Claim {
	c := b.claim(owner())
	c.Queue, c.Inbox, c.HandoffTTL = true, inbox, hand
	return c
}

// queue makes the claim c wait for the key, which is held, and returns the answer.
func (b *bench) queue(c store.Claim) store.Grant {
	b.Helper()
	return b.checkState(b.acquire(c), store.Busy, "acquire of a held key")
}

// newWaiter makes a new owner wait for the key, which is held, and returns its claim. The owner is
// notified at inbox.
func (b *bench) newWaiter(inbox string) store.Claim {
	b.Helper()
	c := b.waiter(inbox)
	b.queue(c)
	return c
}

// free releases the key, which c holds.
func (b *bench) free(c store.Claim) {
	b.Helper()
	b.checkState(b.release(c), store.Released, "release by the holder")
}

// checkHolds fails the law unless c holds the key. If c was handed the key, checkHolds confirms the
// hand-off. The parameter step names the step in a failure.
func (b *bench) checkHolds(c store.Claim, step string) {
	b.Helper()
	c.ByHandoff = true
	b.checkState(b.renew(c), store.Granted, step)
}

// sleep waits until the duration d has passed on the server's clock.
func (b *bench) sleep(d time.Duration) { <-time.After(d + d/10) }
