package redisstore_test

import (
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// claimOf returns the claim of a new writer of the key.
func claimOf(key string) store.Claim {
	return store.Claim{Key: key, Owner: rand.Text(), TTL: time.Minute, FenceCount: 1}
}

// stateOf returns a function that checks that an answer has the state want.
func stateOf(t *testing.T, want store.State) func(store.Grant, error) store.Grant {
	return func(g store.Grant, err error) store.Grant {
		t.Helper()
		if err != nil || g.State != want {
			t.Fatalf("%v, %v, want %v", g.State, err, want)
		}
		return g
	}
}

// After a writer it is the readers' turn, also when the writer was revoked. After readers it is a
// writer's turn. The Locker that revokes them need not have readers.
func TestARevocationKeepsTheTurns(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := locktest.ReadWriteStore(server.Client(t))
	for name, revoker := range map[string]store.Store{"with readers": s, "without readers": locktest.SingleStore(server.Client(t))} {
		for _, held := range []store.Mode{store.Exclusive, store.Shared} {
			key := rand.Text()
			holder, w, r := claimOf(key), claimOf(key), claimOf(key)
			holder.Mode, r.Mode = held, store.Shared
			w.Queue, w.HandoffTTL, r.Queue, r.HandoffTTL = true, time.Minute, true, time.Minute
			g := stateOf(t, store.Granted)(s.Acquire(t.Context(), holder))
			stateOf(t, store.Busy)(s.Acquire(t.Context(), w))
			stateOf(t, store.Busy)(s.Acquire(t.Context(), r))
			stateOf(t, store.Released)(store.CapabilitiesOf(revoker).Revoke(t.Context(), key, g.Fence, "drill"))
			next, last := w, r
			if held == store.Exclusive {
				next, last = r, w
			}
			stateOf(t, store.Granted)(s.Acquire(t.Context(), next))
			stateOf(t, store.Busy)(s.Acquire(t.Context(), last))
			holder.Fence = g.Fence
			if answer := stateOf(t, store.Revoked)(s.Release(t.Context(), holder)); answer.Reason != "drill" {
				t.Errorf("%s, %v: the reason is %q", name, held, answer.Reason)
			}
		}
	}
}

// The readers of a phase may be evicted. A reader that enters later must not count as the only one:
// its release frees the key of nobody.
func TestAReaderThatEntersAfterAnEvictionIsNotTheOnlyOne(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	s, first := locktest.ReadWriteStore(client), claimOf(rand.Text())
	first.Mode = store.Shared
	later := first
	later.Owner = rand.Text()
	stateOf(t, store.Granted)(s.Acquire(t.Context(), first))
	if client.Del(t.Context(), redisstore.ReadersKey(first.Key)).Val() != 1 {
		t.Fatal("positive control: nothing was evicted")
	}
	later.Fence = stateOf(t, store.Granted)(s.Acquire(t.Context(), later)).Fence
	stateOf(t, store.Released)(s.Release(t.Context(), later))
	stateOf(t, store.Busy)(s.Acquire(t.Context(), claimOf(first.Key)))
}

func TestDataOfAnotherTypeBesideAReadWriteLockIsRefused(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	l := newReadWrite(t, server.Client(t))
	for _, key := range []string{redisstore.ReadersKey("a"), redisstore.QueueKey("b"), "c"} {
		if err := client.HSet(t.Context(), key, "field", "value").Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"a", "b", "c"} {
		_, err := l.Acquire(t.Context(), locker.Rule{Key: key, Mode: locker.Shared, Wait: time.Second})
		if err == nil || errors.Is(err, locker.ErrBusy) {
			t.Errorf("%s: %v", key, err)
		}
		if got := client.Get(t.Context(), key).Val(); got != "" {
			t.Errorf("%s holds %q although the step was refused", key, got)
		}
	}
}
