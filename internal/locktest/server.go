package locktest

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// NothingLeftBut fails the test if the server has other keys than fence counters, tombstones and
// keys that begin with one of the texts in notes. A tombstone, and a key that begins with such a
// text, must expire within a minute. On a busy machine an acquire may take so long that it is sent
// again, and then its release leaves a tombstone.
func NothingLeftBut(t *testing.T, c *redis.Client, notes ...string) {
	t.Helper()
	for _, key := range c.Keys(t.Context(), "*").Val() {
		left := c.PTTL(t.Context(), key).Val()
		noted := false
		for _, note := range append(notes, "latchkit:x:") {
			noted = noted || strings.HasPrefix(key, note) && left > 0 && left <= time.Minute
		}
		if !noted && !strings.HasPrefix(key, "latchkit:f:") {
			t.Errorf("%s is left, for %v", key, left)
		}
	}
}

// DeadServer returns a client whose server does not exist.
func DeadServer(t testing.TB) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialTimeout: time.Second, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { c.Close() })
	return c
}
