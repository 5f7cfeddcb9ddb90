package link

import (
	"context"
	"slices"
	"sync"
	"time"
)

// crew has the goroutines of a Links. The goroutines are kept for later flights, because the stack
// of a new goroutine would have to grow again. The zero value is ready for use.
type crew struct {
	live tasks // all goroutines, idle and busy

	mu      sync.Mutex
	idle    []*worker // a stack: the worker on top has worked last, so its memory is still in the processor's cache
	spare   int       // the smallest number of idle workers since the last trim; this many workers were not needed
	trimmer *time.Timer
	armed   bool
	closed  bool
}

// idleFor is the shortest time for which an idle goroutine is kept. A goroutine may be kept for
// twice as long.
const idleFor = 30 * time.Second

// job is a piece of work for a goroutine of the crew.
type job interface{ run() }

// jobFunc is a job that consists of one function.
type jobFunc func()

func (f jobFunc) run() { f() }

// worker is one goroutine. The worker executes the jobs of its channel, and ends when the channel
// is closed.
type worker struct{ jobs chan job }

// start runs a job on a goroutine of the crew. No job is refused, because calls that are made after
// Close must still be sent.
func (c *crew) start(j job) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		w := c.idle[n-1]
		c.idle[n-1] = nil
		c.idle = c.idle[:n-1]
		c.spare = min(c.spare, n-1)
		c.mu.Unlock()
		w.jobs <- j
		return
	}
	c.mu.Unlock()
	w := &worker{make(chan job, 1)}
	c.live.enter()
	w.jobs <- j
	go c.run(w)
}

func (c *crew) run(w *worker) {
	defer c.live.leave()
	for j := range w.jobs {
		j.run()
		if !c.park(w) {
			return
		}
	}
}

// park keeps the goroutine w for the next job. It returns false when the goroutine must end.
func (c *crew) park(w *worker) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.idle = append(c.idle, w)
	if !c.armed {
		c.armed, c.spare = true, 0
		if c.trimmer == nil {
			c.trimmer = time.AfterFunc(idleFor, c.trim)
		} else {
			c.trimmer.Reset(idleFor)
		}
	}
	return true
}

// trim ends the goroutines that were not needed since the last trim.
func (c *crew) trim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endIdle(c.spare)
	if c.armed = len(c.idle) > 0; c.armed {
		c.trimmer.Reset(idleFor)
	}
}

// endIdle ends n idle goroutines, those that have been idle for longest. The caller holds c.mu.
func (c *crew) endIdle(n int) {
	for _, w := range c.idle[:n] {
		close(w.jobs)
	}
	c.idle = slices.Delete(c.idle, 0, n)
	c.spare = len(c.idle)
}

// stop waits until all goroutines have ended, or until ctx ends.
func (c *crew) stop(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	c.endIdle(len(c.idle))
	if c.trimmer != nil {
		c.trimmer.Stop()
	}
	c.mu.Unlock()
	return c.live.wait(ctx)
}

// tasks counts the tasks under way, so that a caller can wait for their end. Unlike in a
// sync.WaitGroup, new tasks may be counted during the wait. The zero value is ready for use.
type tasks struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed when n reaches 0; nil while no caller waits
}

func (t *tasks) enter() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
}

func (t *tasks) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// wait returns nil as soon as no task is under way, or ctx's error if ctx ends first.
func (t *tasks) wait(ctx context.Context) error {
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
