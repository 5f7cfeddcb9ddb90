package main

import (
	"context"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// These tests run the libraries that the README compares with latchkit. Each test shows one row of
// that table, so a new version of a library that does better makes a test fail.

// held is a lock of any of the libraries.
type held struct {
	ctx     context.Context // ends when the library tells the holder of a loss; nil if it never does
	release func() error    // an error if the lock was lost
}

// compared takes locks on the server at addr, by the keys that redisKey returns.
type compared struct {
	name     string
	redisKey string // of the key "a"
	open     func(t *testing.T, addr string, ttl time.Duration) func(context.Context) (held, error)
}

var libraries = []compared{
	{"latchkit", "a", func(t *testing.T, addr string, ttl time.Duration) func(context.Context) (held, error) {
		l, err := locker.New(goRedis(t, addr))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		return func(ctx context.Context) (held, error) {
			lease, err := l.Acquire(ctx, locker.Rule{Key: "a", TTL: ttl})
			if err != nil {
				return held{}, err
			}
			return held{lease.Context(), func() error { return lease.Release(context.Background()) }}, nil
		}
	}},
	{"redsync", "a", func(t *testing.T, addr string, ttl time.Duration) func(context.Context) (held, error) {
		rs := redsync.New(goredis.NewPool(goRedis(t, addr)))
		return func(ctx context.Context) (held, error) {
			m := rs.NewMutex("a", redsync.WithExpiry(ttl))
			if err := m.LockContext(ctx); err != nil {
				return held{}, err
			}
			return held{nil, func() error { return checkOK(m.UnlockContext(context.Background())) }}, nil
		}
	}},
	{"redislock", "a", func(t *testing.T, addr string, ttl time.Duration) func(context.Context) (held, error) {
		c := redislock.New(goRedis(t, addr))
		return func(ctx context.Context) (held, error) {
			lock, err := c.Obtain(ctx, "a", ttl, nil)
			if err != nil {
				return held{}, err
			}
			return held{nil, func() error { return lock.Release(context.Background()) }}, nil
		}
	}},
	{"rueidislock", "rueidislock:0:a", func(t *testing.T, addr string, ttl time.Duration) func(context.Context) (held, error) {
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			KeyPrefix: "rueidislock", KeyValidity: ttl, ExtendInterval: ttl / 3, KeyMajority: 1, NoLoopTracking: true,
			TryNextAfter: time.Second, ClientOption: rueidis.ClientOption{InitAddress: []string{addr}},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(l.Close)
		return func(ctx context.Context) (held, error) {
			locked, cancel, err := l.WithContext(ctx, "a")
			if err != nil {
				return held{}, err
			}
			return held{locked, func() error {
				err := locked.Err()
				cancel()
				return err
			}}, nil
		}
	}},
}

// goRedis returns a client whose calls end with their contexts.
func goRedis(t *testing.T, addr string) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// awaitKey waits until the key exists, or until it does not exist.
func awaitKey(t *testing.T, c *redis.Client, key string, exists int64) {
	t.Helper()
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); <-time.After(2 * time.Millisecond) {
		n, err := c.Exists(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		if n == exists {
			return
		}
	}
	t.Fatalf("the key %s: want %d of it", key, exists)
}

func each(t *testing.T, test func(t *testing.T, l compared, server *redistest.Server)) {
	for _, l := range libraries {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			test(t, l, redistest.Start(t))
		})
	}
}

// latchkit and rueidislock renew a lease as long as it is held. redsync and redislock do not: a
// program must call Extend or Refresh.
func TestWhoRenews(t *testing.T) {
	t.Parallel()
	renews := map[string]bool{"latchkit": true, "rueidislock": true}
	each(t, func(t *testing.T, l compared, server *redistest.Server) {
		const ttl = 600 * time.Millisecond
		client := server.Client(t)
		h, err := l.open(t, server.Addr(), ttl)(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !renews[l.name] {
			awaitKey(t, client, l.redisKey, 0)
			if h.release() == nil {
				t.Error("the release of a lock that was over returned no error")
			}
			return
		}
		for until := time.Now().Add(3 * ttl); time.Now().Before(until); <-time.After(20 * time.Millisecond) {
			if n := client.Exists(t.Context(), l.redisKey).Val(); n != 1 {
				t.Fatal("the lease was not renewed")
			}
		}
		if err := h.release(); err != nil {
			t.Error(err)
		}
	})
}

// When the key of a lock is deleted, latchkit and rueidislock end the context of the holder.
// redsync and redislock have no such context: their holder learns of the loss at its next Extend or
// Refresh, if it calls one, or at its release.
func TestWhoTellsAHolderOfALoss(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, l compared, server *redistest.Server) {
		client := server.Client(t)
		h, err := l.open(t, server.Addr(), 3*time.Second)(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Del(t.Context(), l.redisKey).Err(); err != nil {
			t.Fatal(err)
		}
		if h.ctx != nil {
			select {
			case <-h.ctx.Done():
			case <-time.After(20 * time.Second):
				t.Fatal("the context of the holder does not end")
			}
		}
		if h.release() == nil {
			t.Error("the release of a lost lock returned no error")
		}
	})
}

// The context of an acquire ends when the server has granted the lock and its answer is under way.
// latchkit and rueidislock give such a grant back. redsync and redislock leave the key, for its
// TTL.
func TestWhoUndoesACancelledAcquire(t *testing.T) {
	t.Parallel()
	undoes := map[string]bool{"latchkit": true, "rueidislock": true}
	each(t, func(t *testing.T, l compared, server *redistest.Server) {
		client := server.Client(t)
		slow, err := newDelay(server.Addr(), 300*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(slow.close)
		acquire := l.open(t, slow.addr(), 30*time.Second)
		for until := time.Now().Add(20 * time.Second); ; { // opens connections and loads scripts
			h, err := acquire(t.Context())
			if err == nil {
				err = h.release()
			}
			if err == nil {
				break
			}
			if time.Now().After(until) {
				t.Fatal(err)
			}
		}
		awaitKey(t, client, l.redisKey, 0)
		ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := acquire(ctx)
			ended <- err
		}()
		awaitKey(t, client, l.redisKey, 1)
		if <-ended == nil {
			t.Fatal("an acquire whose context had ended succeeded")
		}
		if undoes[l.name] {
			awaitKey(t, client, l.redisKey, 0)
			return
		}
		for until := time.Now().Add(2 * time.Second); time.Now().Before(until); <-time.After(20 * time.Millisecond) {
			if n := client.Exists(t.Context(), l.redisKey).Val(); n != 1 {
				t.Fatal("the library has given the key back: correct the README")
			}
		}
	})
}
