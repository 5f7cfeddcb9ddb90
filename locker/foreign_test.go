package locker_test

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// In the tests of this file, other programs lock the same keys with other libraries.

// foreign are values that other libraries write under a key that they hold.
var foreign = map[string]string{
	"plain SET NX PX":    "1",
	"redislock":          base64.RawURLEncoding.EncodeToString(make([]byte, 16)),
	"redislock metadata": base64.RawURLEncoding.EncodeToString(make([]byte, 16)) + "host:7:metadata",
	"redsync":            base64.StdEncoding.EncodeToString(make([]byte, 16)),
	"redis-py":           hex.EncodeToString(make([]byte, 16)),
	"Redisson-like":      "285475da-9152-4c83-822a-67ee2f116a79:52",
	"ShedLock":           "ADDED:2026-01-02T03:04:05.678Z@host",
	"numbers":            "17:42:1",
	"a token's length":   "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
	"empty":              "",
}

// poller is a client that locks as redislock does: SET NX PX, and a script that deletes the key
// only if it still holds the client's value.
type poller struct {
	*testing.T
	*redis.Client
	key, token string
}

func newPoller(t *testing.T, c *redis.Client, key string) *poller {
	t.Helper()
	return &poller{t, c, key, base64.RawURLEncoding.EncodeToString([]byte(rand.Text()))[:22]}
}

func (p *poller) obtain(ttl time.Duration) bool {
	p.Helper()
	switch err := p.SetArgs(p.Context(), p.key, p.token, redis.SetArgs{Mode: "NX", TTL: ttl}).Err(); err {
	case nil:
		return true
	case redis.Nil:
		return false
	default:
		p.Error(err)
		return false
	}
}

func TestAForeignHolderExcludesUsAndIsWaitedFor(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	client := server.Client(t)
	l, other := newSingle(t, client), newSingle(t, server.Client(t))
	for name, value := range foreign {
		key := "foreign:" + name
		for how, end := range map[string]struct {
			ttl time.Duration
			do  func()
		}{
			"deletes it":              {time.Minute, func() { client.Del(t.Context(), key) }},
			"deletes it, without TTL": {0, func() { client.Del(t.Context(), key) }},
			"lets it expire":          {0, func() { client.PExpire(t.Context(), key, 30*time.Millisecond) }},
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				if err := client.Set(t.Context(), key, value, end.ttl).Err(); err != nil {
					t.Fatal(err)
				}
				_, err := l.Acquire(t.Context(), locker.Rule{Key: key, Wait: locker.NoWait})
				wantErr(t, err, key, locker.ErrBusy)
				if i, err := l.Inspect(t.Context(), key); err != nil || !i.Held || !i.Foreign || i.Fence != 0 {
					t.Fatalf("%+v %v", i, err)
				}
				first := queues(t, l, locker.Rule{Key: key}, client)
				second := queues(t, other, locker.Rule{Key: key}, client)
				if got := client.Get(t.Context(), key).Val(); got != value {
					t.Fatalf("the key holds %q", got)
				}
				first.WaitsStill()
				second.WaitsStill()
				end.do()
				// The waiter gets the lease within the longest pause of the Backoff, or within
				// the poller's TTL.
				lease := first.Granted(130 * time.Millisecond)
				if newPoller(t, client, key).obtain(time.Minute) {
					t.Fatal("a foreign program got the key that we hold")
				}
				second.WaitsStill()
				release(t, lease)
				release(t, second.Granted(0))
			})
		}
	}
}

// The head of the queue asks as soon as a foreign lease expires. The head does not wait for the
// end of its pause.
func TestAForeignLeaseThatRunsOutGoesToTheHead(t *testing.T) {
	t.Parallel()
	client := redistest.Shared(t).Client(t)
	l := newSingle(t, client, locker.WithBackoff(locker.Exponential(time.Hour, time.Hour)))
	const key = "foreign:expires"
	p := newPoller(t, client, key)
	start := time.Now()
	if !p.obtain(700 * time.Millisecond) {
		t.Fatal("positive control: the poller did not get the key")
	}
	w := queues(t, l, locker.Rule{Key: key}, client)
	lease := w.Granted(700 * time.Millisecond)
	if took := w.At.Sub(start); took < 700*time.Millisecond {
		t.Errorf("granted after %v", took)
	}
	release(t, lease)
}
