package locktest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker"
)

// Pending is an acquire in the background. Pending is for tests in real time.
type Pending struct {
	*testing.T
	Rule   locker.Rule
	Cancel context.CancelFunc
	Done   chan struct{}
	Lease  *locker.Lease
	Err    error
	At     time.Time // when the acquire ended
}

// Asks starts an acquire of the rule in the background, and returns it.
func Asks(t *testing.T, l locker.Locker, rule locker.Rule) *Pending {
	t.Helper()
	p := &Pending{T: t, Rule: rule, Done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	p.Cancel = cancel
	go func() {
		defer close(p.Done)
		p.Lease, p.Err = l.Acquire(ctx, rule)
		p.At = time.Now()
	}()
	t.Cleanup(func() {
		cancel()
		<-p.Done
	})
	return p
}

// Queues starts an acquire of the rule in the background, and returns it when the entry of the
// acquire is in the server's queue, behind all earlier entries.
func Queues(t *testing.T, l locker.Locker, rule locker.Rule, c redis.Cmdable) *Pending {
	t.Helper()
	before := entries(t, c, rule.Key)
	p := Asks(t, l, rule)
	// The entries are compared, and not their number, because an earlier entry may leave meanwhile.
	Eventually(t, "it is in the queue", func() bool {
		return slices.ContainsFunc(entries(t, c, rule.Key), func(entry string) bool { return !slices.Contains(before, entry) })
	})
	return p
}

// Queued returns how many entries the queue of a key has.
func Queued(t *testing.T, c redis.Cmdable, key string) int {
	t.Helper()
	return len(entries(t, c, key))
}

// entries returns the entries in the queue of a key.
func entries(t *testing.T, c redis.Cmdable, key string) []string {
	t.Helper()
	all, err := c.ZRange(t.Context(), redisstore.QueueKey(key), 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Granted waits at most d + Slack for the lease, and returns the lease.
func (p *Pending) Granted(d time.Duration) *locker.Lease {
	p.Helper()
	select {
	case <-p.Done:
	case <-time.After(d + Slack):
		p.Fatalf("not granted within %v and %v more", d, Slack)
	}
	if p.Err != nil {
		p.Fatal(p.Err)
	}
	return p.Lease
}

// Over reports whether the acquire has ended.
func (p *Pending) Over() bool {
	select {
	case <-p.Done:
		return true
	default:
		return false
	}
}

// WaitsStill fails the test if the acquire has ended.
func (p *Pending) WaitsStill() {
	p.Helper()
	if p.Over() {
		p.Fatalf("it ended: %v %v", p.Lease, p.Err)
	}
}
