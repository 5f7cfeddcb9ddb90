package redisstore_test

import (
	"crypto/rand"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
)

// Every subset of the keys of a lock is deleted, as an eviction or an operator may do. A second
// holder is possible only after the deletions that the table of guarantees names. The first holder
// then learns at its next renewal that it has lost the lock, so the two do not go on together. The
// fence of the second holder is larger, whatever is deleted.
func TestEverySubsetOfTheKeysOfALockMayBeDeleted(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client(t)
	exclusive := func(key string) store.Claim { return claimOf(key) }
	for name, c := range map[string]struct {
		store    store.Store
		claim    func(key string) store.Claim
		newcomer func(key string) store.Claim
		keys     map[string]func(l string) string
		holders  int
		// second reports whether a second holder is possible when gone is deleted.
		second func(gone map[string]bool) bool
	}{
		"one holder": {
			store: locktest.SingleStore(client), claim: exclusive, newcomer: exclusive, holders: 1,
			keys:   map[string]func(string) string{"Q": redisstore.QueueKey},
			second: func(gone map[string]bool) bool { return gone["L"] },
		},
		"a writer": {
			store: locktest.ReadWriteStore(client), claim: exclusive, newcomer: exclusive, holders: 1,
			keys:   map[string]func(string) string{"Q": redisstore.QueueKey},
			second: func(gone map[string]bool) bool { return gone["L"] },
		},
		"two readers": {
			store: locktest.ReadWriteStore(client), newcomer: exclusive, holders: 2,
			claim: func(key string) store.Claim {
				c := claimOf(key)
				c.Mode = store.Shared
				return c
			},
			keys:   map[string]func(string) string{"Q": redisstore.QueueKey, "R": redisstore.ReadersKey},
			second: func(gone map[string]bool) bool { return gone["L"] || gone["R"] },
		},
		"two units of two": {
			store: locktest.SemaphoreStore(client), holders: 2,
			claim:    func(key string) store.Claim { return unitsOf(key, 1, 2) },
			newcomer: func(key string) store.Claim { return unitsOf(key, 1, 2) },
			keys:     map[string]func(string) string{"Q": redisstore.QueueKey, "P": redisstore.PermitsKey, "U": redisstore.UsesKey},
			second:   func(gone map[string]bool) bool { return gone["L"] && (gone["P"] || gone["U"]) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.keys["L"], c.keys["C"] = func(l string) string { return l }, redisstore.CounterKey
			var names []string
			for key := range c.keys {
				names = append(names, key)
			}
			possible := 0
			for mask := range 1 << len(names) {
				gone := make(map[string]bool)
				for i, key := range names {
					gone[key] = mask>>i&1 == 1
				}
				if checkDeleted(t, client, c.store, c.holders, c.claim, c.newcomer, c.keys, gone) {
					if possible++; !c.second(gone) {
						t.Errorf("a second holder after the deletion of %v", gone)
					}
				}
			}
			if possible == 0 {
				t.Error("positive control: no deletion admits a second holder")
			}
		})
	}
}

// checkDeleted lets holders take a key and a waiter queue, deletes the keys in gone, and reports
// whether the waiter or a newcomer is then granted the key.
func checkDeleted(t *testing.T, client *redis.Client, s store.Store, holders int, claim, newcomer func(string) store.Claim, keys map[string]func(string) string, gone map[string]bool) (second bool) {
	t.Helper()
	key := rand.Text()
	var held []store.Claim
	var last uint64
	for range holders {
		held = append(held, claim(key))
		g, err := s.Acquire(t.Context(), held[len(held)-1])
		if err != nil || g.State != store.Granted {
			t.Fatalf("%v, %v", g.State, err)
		}
		last = g.Fence
	}
	waiter := newcomer(key)
	waiter.Queue, waiter.HandoffTTL = true, waiter.TTL
	refusedUnits(t, s, waiter)
	var deleted []string
	for name, keyOf := range keys {
		if gone[name] && client.Del(t.Context(), keyOf(key)).Val() == 1 {
			deleted = append(deleted, name)
		}
	}
	for _, c := range []store.Claim{newcomer(key), waiter} {
		g, err := s.Acquire(t.Context(), c)
		if err != nil || g.State != store.Granted && g.State != store.Busy {
			t.Fatalf("%v is gone: %v, %v", deleted, g.State, err)
		}
		if g.State == store.Granted {
			if second = true; g.Fence <= last {
				t.Errorf("%s is gone: fence %d after %d", strings.Join(deleted, " "), g.Fence, last)
			}
		}
	}
	if second {
		for _, c := range held {
			renewed(t, s, c, store.NotOurs)
		}
	}
	return second
}
