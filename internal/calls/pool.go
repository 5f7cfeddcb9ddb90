package calls

import (
	"context"
	"iter"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Pool has goroutines for calls that may hang, because go-redis does not stop a call under way when
// its context ends. So a caller can wait for the answer or for another event, and can leave at any
// time. The zero value is ready for use.
type Pool struct {
	live    Tasks        // the jobs
	hanging atomic.Int32 // the number of abandoned steps, and of renewals, under way
	// The idle channels of Futures. Each Pool has its own channels, because a channel that was made
	// in a testing/synctest bubble must stay in the bubble.
	signals sync.Pool
}

// Do runs job on a goroutine. No job is refused, because a step after Stop must still be sent.
func (p *Pool) Do(job func()) {
	p.live.Enter()
	go func() {
		defer p.live.Leave()
		job()
	}()
}

// Stop waits until no job is under way, or until ctx ends.
func (p *Pool) Stop(ctx context.Context) error { return p.live.Wait(ctx) }

// Tasks counts the tasks under way, so that a caller can wait for their end. Unlike in a
// sync.WaitGroup, new tasks may be counted during the wait. After Close, new tasks are refused. The
// zero value is ready for use.
type Tasks struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{} // closed when n reaches 0; nil while no caller waits
}

// Enter counts one more task. It returns false after Close.
func (t *Tasks) Enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.n++
	return true
}

// Join counts one more task, also after Close. It returns false if no task is under way.
func (t *Tasks) Join() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		return false
	}
	t.n++
	return true
}

// Leave ends a task that Enter or Join has counted.
func (t *Tasks) Leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// Close makes Enter refuse new tasks.
func (t *Tasks) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// Wait returns nil as soon as no task is under way, or ctx's error if ctx ends first.
func (t *Tasks) Wait(ctx context.Context) error {
	idle := t.Idle()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Idle returns a channel that is closed as soon as no task is under way. It returns nil if no task
// is under way now.
func (t *Tasks) Idle() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n == 0 {
		return nil
	}
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	return t.idle
}

// UndoFor returns how long the tombstone of a token must exist. The parameter unclear is true if an
// acquire of the token has no answer, and lease is the TTL of the token's lease. Without an unclear
// acquire, no tombstone is needed, and the result is 0. Otherwise the tombstone exists for longer
// than a late acquire can have an effect.
func UndoFor(unclear bool, lease time.Duration) time.Duration {
	if !unclear {
		return 0
	}
	return max(lease, time.Minute)
}

// QueueLife is how long the removal of an entry from a server's queue is repeated. After that time
// the entry is gone, or its token was granted the key. In the second case, the grant is released.
const QueueLife = 10 * time.Second

const Timeout = 5 * time.Second // the time-out of calls in the background

// BetweenRepeats are the pauses between attempts at a server that does not answer: 10 ms, doubling
// up to 500 ms, jittered, without an end. It is a function, and not a value, so that the loop over it
// allocates nothing.
func BetweenRepeats(yield func(time.Duration) bool) {
	for d := firstPause; yield(d/2 + rand.N(d/2+1)); d = min(2*d, 500*time.Millisecond) {
	}
}

const firstPause = 10 * time.Millisecond

// Doubling returns a series of pauses. The first pause lasts for the parameter first, and each
// later pause is twice as long as the pause before it. No pause is longer than the parameter most.
func Doubling(first, most time.Duration) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for d := min(first, most); yield(d); d = min(2*d, most) {
		}
	}
}

// Jittered replaces each pause by a random pause that is at least half as long, and not longer.
func Jittered(pauses iter.Seq[time.Duration]) iter.Seq[time.Duration] {
	return func(yield func(time.Duration) bool) {
		for d := range pauses {
			if d > 1 {
				d = d/2 + rand.N(d/2+1)
			}
			if !yield(d) {
				return
			}
		}
	}
}

// Timers is a pool of timers. Nearly all timers are stopped long before they fire, so they can be
// used again. Each Engine has its own pool, because a timer that was made in a testing/synctest
// bubble must stay in the bubble.
type Timers struct{ pool sync.Pool }

// Start returns a timer that fires after d. Give it back with Stop.
func (t *Timers) Start(d time.Duration) *time.Timer {
	timer, ok := t.pool.Get().(*time.Timer)
	if !ok {
		return time.NewTimer(d)
	}
	timer.Reset(d)
	return timer
}

// Stop stops the timer and returns it to the pool. After that, the caller must not read the timer's
// channel. The next Reset clears the channel.
func (t *Timers) Stop(timer *time.Timer) {
	timer.Stop()
	t.pool.Put(timer)
}
