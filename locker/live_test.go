package locker_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
)

// Waiting in real time, on a real server: what waits and waiting.granted of the tests in a bubble are there.

// pending is an acquire in the background.
type pending struct {
	*testing.T
	rule   locker.Rule
	cancel context.CancelFunc
	done   chan struct{}
	lease  *locker.Lease
	err    error
	at     time.Time // when it ended
}

// asks starts an acquire.
func asks(t *testing.T, l locker.Locker, rule locker.Rule) *pending {
	t.Helper()
	p := &pending{T: t, rule: rule, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	p.cancel = cancel
	go func() {
		defer close(p.done)
		p.lease, p.err = l.Acquire(ctx, rule)
		p.at = time.Now()
	}()
	t.Cleanup(func() {
		cancel()
		<-p.done
	})
	return p
}

// queues starts an acquire, and returns when it is in the server's queue: behind all who were there before.
func queues(t *testing.T, l locker.Locker, rule locker.Rule, c redis.Cmdable) *pending {
	t.Helper()
	before := inLine(t, c, rule.Key)
	p := asks(t, l, rule)
	eventually(t, "it is in the queue", func() bool { return inLine(t, c, rule.Key) == before+1 })
	return p
}

// granted waits for the lease, for no longer than d and the slack of a slow machine.
func (p *pending) granted(d time.Duration) *locker.Lease {
	p.Helper()
	select {
	case <-p.done:
	case <-time.After(d + slack):
		p.Fatalf("not granted within %v and %v more", d, slack)
	}
	if p.err != nil {
		p.Fatal(p.err)
	}
	return p.lease
}

// over says whether it has ended.
func (p *pending) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// waitsStill fails unless it waits.
func (p *pending) waitsStill() {
	p.Helper()
	if p.over() {
		p.Fatalf("it ended: %v %v", p.lease, p.err)
	}
}
