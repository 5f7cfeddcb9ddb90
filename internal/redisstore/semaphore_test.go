package redisstore_test

import (
	"crypto/rand"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// unitsOf returns the claim of a new owner for weight units of a key that has limit units.
func unitsOf(key string, weight, limit int) store.Claim {
	c := claimOf(key)
	c.Weight, c.Limit, c.HandoffTTL = weight, limit, time.Second
	return c
}

func granted(t *testing.T, s store.Store, c store.Claim) store.Claim {
	t.Helper()
	stateOf(t, store.Granted)(s.Acquire(t.Context(), c))
	return c
}

func refusedUnits(t *testing.T, s store.Store, c store.Claim) store.Claim {
	t.Helper()
	stateOf(t, store.Busy)(s.Acquire(t.Context(), c))
	return c
}

func renewed(t *testing.T, s store.Store, c store.Claim, want store.State) {
	t.Helper()
	gs, err := s.Renew(t.Context(), []store.Claim{c})
	if err != nil || gs[0].State != want {
		t.Fatalf("renewal: %v %v, want %v", gs, err, want)
	}
}

// When L (the key that shows that permits are held) is evicted, the permits are still held. The
// next step writes L again.
func TestPermitsOutliveTheirEvictedShield(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, s := server.Client(t), locktest.SemaphoreStore(server.Client(t))
	for name, step := range map[string]func(t *testing.T, key string, holder store.Claim){
		"a renewal":  func(t *testing.T, _ string, holder store.Claim) { renewed(t, s, holder, store.Granted) },
		"an acquire": func(t *testing.T, key string, _ store.Claim) { refusedUnits(t, s, unitsOf(key, 1, 2)) },
		"a release": func(t *testing.T, key string, holder store.Claim) {
			stateOf(t, store.Released)(s.Release(t.Context(), holder))
			granted(t, s, unitsOf(key, 1, 2))
		},
		"a confirmation": func(t *testing.T, _ string, holder store.Claim) { granted(t, s, holder) },
	} {
		t.Run(name, func(t *testing.T) {
			key := rand.Text()
			one, two := granted(t, s, unitsOf(key, 1, 2)), granted(t, s, unitsOf(key, 1, 2))
			epoch := client.Get(t.Context(), key).Val()
			if client.Del(t.Context(), key).Val() != 1 {
				t.Fatal("positive control: nothing was evicted")
			}
			step(t, key, one)
			if again := client.Get(t.Context(), key).Val(); again != epoch {
				t.Errorf("L is %q, and was %q", again, epoch)
			}
			refusedUnits(t, s, unitsOf(key, 1, 2))
			renewed(t, s, two, store.Granted)
		})
	}
}

// When P or U was evicted, or has lost a permit, the holders are unknown, so no caller enters until
// L has expired.
func TestEvictedPermitsKeepNewcomersOut(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, s := server.Client(t), locktest.SemaphoreStore(server.Client(t))
	for name, evict := range map[string]func(key, token string) int64{
		"P": func(key, _ string) int64 { return client.Del(t.Context(), redisstore.PermitsKey(key)).Val() },
		"U": func(key, _ string) int64 { return client.Del(t.Context(), redisstore.UsesKey(key)).Val() },
		"a permit of P only": func(key, token string) int64 {
			return client.ZRem(t.Context(), redisstore.PermitsKey(key), token).Val()
		},
		"a permit of U only": func(key, token string) int64 { return client.HDel(t.Context(), redisstore.UsesKey(key), token).Val() },
	} {
		t.Run(name, func(t *testing.T) {
			key := rand.Text()
			c := unitsOf(key, 1, 3)
			c.TTL = 500 * time.Millisecond
			granted(t, s, c)
			long := unitsOf(key, 1, 3)
			long.TTL = 700 * time.Millisecond
			granted(t, s, long)
			if evict(key, c.Owner) != 1 {
				t.Fatal("positive control: nothing was evicted")
			}
			waiter := unitsOf(key, 1, 3)
			waiter.Queue = true
			began := time.Now()
			refusedUnits(t, s, waiter)
			renewed(t, s, c, store.NotOurs)
			renewed(t, s, long, store.NotOurs)
			stateOf(t, store.NotOurs)(s.Release(t.Context(), c))
			info, err := store.CapabilitiesOf(s).Inspect(t.Context(), key)
			if err != nil || !info.Held || len(info.Permits) > 0 {
				t.Errorf("%+v %v, want a held key without known permits", info, err)
			}
			locktest.Eventually(t, "L runs out", func() bool {
				g, err := s.Acquire(t.Context(), waiter)
				return err == nil && g.State == store.Granted
			})
			if took := time.Since(began); took < 400*time.Millisecond {
				t.Errorf("granted after %v, and the last permit had 700ms", took)
			}
			granted(t, s, unitsOf(key, 2, 3))
			refusedUnits(t, s, unitsOf(key, 1, 3))
		})
	}
}

// A release grants units to at most 64 waiters, so that the script stays short. The next request of
// any waiter serves the waiters that are left.
func TestAReleaseServesABoundedNumberOfWaiters(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := locktest.SemaphoreStore(server.Client(t))
	key := rand.Text()
	holder := granted(t, s, unitsOf(key, 100, 100))
	var last store.Claim
	for range 70 {
		last = unitsOf(key, 1, 100)
		last.Queue, last.HandoffTTL = true, time.Minute
		refusedUnits(t, s, last)
	}
	stateOf(t, store.Released)(s.Release(t.Context(), holder))
	served := func() int {
		info, err := store.CapabilitiesOf(s).Inspect(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return len(info.Permits)
	}
	if n := served(); n != 64 {
		t.Errorf("%d waiters were served, want 64", n)
	}
	granted(t, s, last)
	if n := served(); n != 70 {
		t.Errorf("%d waiters are served after the next question, want 70", n)
	}
}

// When the counter has no larger fences, a release succeeds although it can grant nothing to a
// waiter. A waiter that then asks learns the reason, and does not get "busy" for ever.
func TestWaitersForUnitsLearnOfTheEndOfFences(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, s := server.Client(t), locktest.SemaphoreStore(server.Client(t))
	key := rand.Text()
	holder, stays := granted(t, s, unitsOf(key, 1, 2)), granted(t, s, unitsOf(key, 1, 2))
	waiter := unitsOf(key, 1, 2)
	waiter.Queue = true
	refusedUnits(t, s, waiter)
	client.Set(t.Context(), redisstore.CounterKey(key), int64(1)<<53, 0)
	stateOf(t, store.Released)(s.Release(t.Context(), holder))
	for _, c := range []store.Claim{waiter, unitsOf(key, 1, 2)} {
		if _, err := s.Acquire(t.Context(), c); err == nil || !strings.Contains(err.Error(), "set the counter to a lower number") {
			t.Errorf("%v, want the way out", err)
		}
	}
	renewed(t, s, stays, store.Granted)
	client.Set(t.Context(), redisstore.CounterKey(key), int64(1)<<52, 0)
	granted(t, s, waiter)
	refusedUnits(t, s, unitsOf(key, 1, 2))
}

// A full server renews and releases permits and serves the queue, but grants none to newcomers.
func TestAFullServerAndPermits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, s := server.Client(t), locktest.SemaphoreStore(server.Client(t))
	key := rand.Text()
	one, two := granted(t, s, unitsOf(key, 1, 2)), granted(t, s, unitsOf(key, 1, 2))
	waiter := unitsOf(key, 1, 2)
	waiter.Queue = true
	refusedUnits(t, s, waiter)
	client.ConfigSet(t.Context(), "maxmemory", "1")
	var no *store.Refusal
	if _, err := s.Acquire(t.Context(), unitsOf(rand.Text(), 1, 2)); !errors.As(err, &no) {
		t.Fatalf("%v, want a refusal", err)
	}
	handed := two
	handed.ByHandoff = true
	renewed(t, s, handed, store.Granted)
	stateOf(t, store.Released)(s.Release(t.Context(), one))
	waiter.ByHandoff = true
	renewed(t, s, waiter, store.Granted)
	stateOf(t, store.Released)(s.Release(t.Context(), waiter))
	if _, err := s.Acquire(t.Context(), unitsOf(key, 1, 2)); !errors.As(err, &no) {
		t.Fatalf("%v, want a refusal of a newcomer", err)
	}
	renewed(t, s, two, store.Granted)
}

// If a companion key has data of another type, a step is refused before it changes anything. No
// other permit loses its renewal.
func TestDataOfAnotherTypeAmongPermits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, s := server.Client(t), locktest.SemaphoreStore(server.Client(t))
	key, other := rand.Text(), granted(t, s, unitsOf(rand.Text(), 1, 2))
	for _, spoilt := range []string{key, redisstore.PermitsKey(key), redisstore.UsesKey(key), redisstore.CounterKey(key)} {
		t.Run(spoilt[:min(10, len(spoilt))], func(t *testing.T) {
			kept := client.Get(t.Context(), spoilt).Val()
			client.Del(t.Context(), spoilt)
			client.SAdd(t.Context(), spoilt, "member")
			defer func() {
				client.Del(t.Context(), spoilt)
				if kept != "" {
					client.Set(t.Context(), spoilt, kept, 0)
				}
			}()
			if _, err := s.Acquire(t.Context(), unitsOf(key, 1, 2)); !errors.Is(err, store.ErrInvalidKey) {
				t.Errorf("acquire: %v", err)
			}
			gs, err := s.Renew(t.Context(), []store.Claim{unitsOf(key, 1, 2), other})
			if err != nil || gs[0].State != store.NotOurs || gs[1].State != store.Granted {
				t.Errorf("renewals: %v %v", gs, err)
			}
			if n := client.SCard(t.Context(), spoilt).Val(); n != 1 {
				t.Error("the data is gone")
			}
		})
	}
}

// A process of another version may wait with a mode that this version does not know. Such a waiter
// is served like an exclusive waiter: it gets the key alone, and no other waiter overtakes it.
func TestAnUnknownModeInTheQueueIsExclusive(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	for name, s := range map[string]store.Store{
		"locks": locktest.SingleStore(client), "readers": locktest.ReadWriteStore(client), "permits": locktest.SemaphoreStore(client),
	} {
		t.Run(name, func(t *testing.T) {
			key := rand.Text()
			mode, limit := locker.Exclusive, 0
			switch name {
			case "readers":
				mode = locker.Shared
			case "permits":
				limit = 3 // all three claims fit
			}
			holder := claimOf(key)
			holder.Mode, holder.Limit = mode, limit
			granted(t, s, holder)
			stranger := rand.Text()
			client.ZAdd(t.Context(), redisstore.QueueKey(key), redis.Z{
				Score: float64(time.Now().UnixMicro()), Member: stranger + "|-|60000|some/mode|1|0|",
			})
			next := claimOf(key)
			next.Mode, next.Limit, next.Queue, next.HandoffTTL = mode, limit, true, time.Second
			refusedUnits(t, s, next) // next must wait behind the stranger, even as a reader or for a unit
			stateOf(t, store.Released)(s.Release(t.Context(), holder))
			refusedUnits(t, s, next)
			c := claimOf(key)
			c.Owner = stranger
			renewed(t, s, c, store.Granted)
			stateOf(t, store.Released)(s.Release(t.Context(), c))
			next.ByHandoff = true
			granted(t, s, next)
		})
	}
}

// A Locker without permits hands the key alone to a waiter for units. The waiter confirms the
// hand-off when it asks or renews, or it gives the key back. From then on its entry does not count
// as a waiter.
func TestAKeyThatWasHandedToAWaiterForUnits(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	single, s := locktest.SingleStore(client), locktest.SemaphoreStore(client)
	for name, confirms := range map[string]func(t *testing.T, c store.Claim){
		"a question": func(t *testing.T, c store.Claim) { granted(t, s, c) },
		"a renewal":  func(t *testing.T, c store.Claim) { renewed(t, s, c, store.Granted) },
		"a release":  func(t *testing.T, c store.Claim) { stateOf(t, store.Released)(s.Release(t.Context(), c)) },
		"a release that keeps the key": func(t *testing.T, c store.Claim) {
			c.KeepFor = time.Minute
			stateOf(t, store.Released)(s.Release(t.Context(), c))
		},
	} {
		t.Run(name, func(t *testing.T) {
			key := rand.Text()
			holder, waiter := granted(t, single, claimOf(key)), unitsOf(key, 1, 2)
			waiter.Queue = true
			refusedUnits(t, s, waiter)
			stateOf(t, store.Released)(single.Release(t.Context(), holder))
			if info, err := store.CapabilitiesOf(s).Inspect(t.Context(), key); err != nil || !info.Held || info.Waiters != 0 {
				t.Errorf("%+v %v, want a held key without waiters", info, err)
			}
			waiter.Queue = false
			confirms(t, waiter)
			if n := client.ZCard(t.Context(), redisstore.QueueKey(key)).Val(); n != 0 {
				t.Errorf("%d entries are in the queue", n)
			}
		})
	}
}
