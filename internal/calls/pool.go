package calls

import (
	"context"
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

// Leave ends a task that Enter has counted.
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
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	idle := t.idle
	t.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
