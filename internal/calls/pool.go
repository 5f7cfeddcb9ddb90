package calls

import (
	"context"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Pool has goroutines for calls that may hang, because go-redis does not stop a call under way when
// its context ends. So a caller can wait for the answer or for another event, and can leave at any
// time. There are as many goroutines as the largest number of jobs under way at the same time. The
// goroutines are kept for later jobs, because the stack of a new goroutine would have to grow
// again. The zero value is ready for use.
type Pool struct {
	live    Tasks        // all goroutines, idle and busy
	hanging atomic.Int32 // number of abandoned steps under way
	renews  atomic.Int32 // number of calls of renewals under way: see BeginRenew
	// The idle channels of Futures. Each Pool has its own channels, because a channel that was made
	// in a testing/synctest bubble must stay in the bubble.
	signals sync.Pool

	mu      sync.Mutex
	idle    []*worker   // a stack: the worker on top has worked last, so its memory is still in the processor's cache
	spare   int         // the smallest number of idle workers since the last trim; this many workers were not needed
	trimmer *time.Timer // calls trim; runs while there may be idle workers
	armed   bool
	closed  bool
}

// workerIdle is the shortest time for which an idle worker is kept. A worker may be kept for twice
// as long.
const workerIdle = 30 * time.Second

// A Job is a piece of work for a goroutine of a Pool.
type Job interface{ Run() }

// jobFunc is a Job that consists of one function.
type jobFunc func()

// Run calls the function.
func (f jobFunc) Run() { f() }

// worker is one goroutine. The worker executes the jobs of its channel, and ends when the channel
// is closed.
type worker struct{ jobs chan Job }

// Do runs job on a goroutine of the Pool.
func (p *Pool) Do(job func()) { p.Start(jobFunc(job)) }

// Start runs j on a goroutine of the Pool. No job is refused, because a step after Stop must still
// be sent.
func (p *Pool) Start(j Job) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		w := p.idle[n-1]
		p.idle[n-1] = nil
		p.idle = p.idle[:n-1]
		p.spare = min(p.spare, n-1)
		p.mu.Unlock()
		w.jobs <- j
		return
	}
	p.mu.Unlock()
	w := &worker{make(chan Job, 1)}
	p.live.Enter()
	w.jobs <- j
	go p.run(w)
}

func (p *Pool) run(w *worker) {
	defer p.live.Leave()
	for j := range w.jobs {
		j.Run()
		if !p.park(w) {
			return
		}
	}
}

// park keeps the worker w for the next job. It returns false when the goroutine must end.
func (p *Pool) park(w *worker) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.idle = append(p.idle, w)
	if !p.armed {
		p.armed, p.spare = true, 0
		if p.trimmer == nil {
			p.trimmer = time.AfterFunc(workerIdle, p.trim)
		} else {
			p.trimmer.Reset(workerIdle)
		}
	}
	return true
}

// trim ends the workers that were not needed since the last trim.
func (p *Pool) trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endIdle(p.spare)
	if p.armed = len(p.idle) > 0; p.armed {
		p.trimmer.Reset(workerIdle)
	}
}

// endIdle ends n idle workers, those that have been idle for longest. The caller holds p.mu.
func (p *Pool) endIdle(n int) {
	for _, w := range p.idle[:n] {
		close(w.jobs)
	}
	p.idle = slices.Delete(p.idle, 0, n)
	p.spare = len(p.idle)
}

// Stop waits until no job is under way and no goroutine is left, or until ctx ends.
func (p *Pool) Stop(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	p.endIdle(len(p.idle))
	if p.trimmer != nil {
		p.trimmer.Stop()
	}
	p.mu.Unlock()
	return p.live.Wait(ctx)
}

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

// deadlineContext is a context with a deadline but without a timer. The context is for calls that
// the Engine abandons by itself: Go's sockets and go-redis read the deadline. A deadlineContext
// costs a quarter of a context.WithTimeout, which would cost the client more than the rest of a
// release.
type deadlineContext struct {
	context.Context // a context that never ends
	deadline        time.Time
}

// Until returns a context with the values of ctx and with the given deadline. Its Done channel is
// the Done channel of ctx.
func Until(ctx context.Context, deadline time.Time) context.Context {
	return deadlineContext{ctx, deadline}
}

// Deadline returns the deadline that Until has set, and true.
func (u deadlineContext) Deadline() (deadline time.Time, ok bool) { return u.deadline, true }

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

// BetweenRepeats are the pauses between repetitions of a release or an extension.
var BetweenRepeats = Jittered(Doubling(10*time.Millisecond, 500*time.Millisecond))

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
