// Package breaker lets requests run at once and without a lock during an outage of the lock
// server. Only requests that were under way when the outage began have to wait for an answer
// first.
package breaker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/latchkit/latchkit/locker"
)

const (
	// pause is the time between two probes of a server that does not answer.
	pause = time.Second
	// patience is the time-out of a probe.
	patience = 2 * time.Second
)

// A Breaker is open while the lock server cannot be reached. A Breaker is safe for concurrent use.
// Make a Breaker with [New].
type Breaker struct {
	locker locker.Locker

	mu      sync.Mutex
	key     string    // the key that could not be locked; "": b is closed
	next    time.Time // when the server is probed again
	probing bool
}

// New returns a closed Breaker for l.
func New(l locker.Locker) *Breaker { return &Breaker{locker: l} }

// Failed opens b. Call Failed when an acquire of key has ended with locker.ErrUnavailable.
func (b *Breaker) Failed(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.key == "" {
		b.key, b.next = key, time.Now().Add(pause)
	}
}

// Open reports whether requests run without a lock. Open starts a probe when a probe is due, and
// does not wait for the probe.
func (b *Breaker) Open() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.key == "" {
		return false
	}
	if !b.probing && !time.Now().Before(b.next) {
		b.probing = true
		go b.probeServer(b.key)
	}
	return true
}

// probeServer sends a request for key to the server, and closes b if the server answers.
func (b *Breaker) probeServer(key string) {
	answered := false
	defer func() { // deferred, because the Locker may panic
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.probing, b.next = false, time.Now().Add(pause); answered {
			b.key = ""
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := b.request(ctx, key)
	answered = !errors.Is(err, locker.ErrUnavailable) && ctx.Err() == nil
}

// request sends a request for key to the server. The request is an Inspect, which takes no lock. If
// the Locker has no Inspect, the request is an acquire without a wait, and the lock is then
// released.
func (b *Breaker) request(ctx context.Context, key string) error {
	if i, ok := b.locker.(interface {
		Inspect(ctx context.Context, key string) (locker.Info, error)
	}); ok {
		if _, err := i.Inspect(ctx, key); !errors.Is(err, locker.ErrUnsupported) {
			return err
		}
	}
	lease, err := b.locker.Acquire(ctx, locker.Rule{Key: key, Name: "probe", Wait: locker.NoWait})
	if err != nil {
		return err
	}
	return lease.Release(ctx)
}
