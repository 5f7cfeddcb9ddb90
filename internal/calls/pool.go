// Package calls makes calls to Stores. A caller can abandon its call, which is then finished in the
// background. The package knows nothing of locks and servers.
package calls

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// Pool runs calls to the Store on goroutines of its own, because go-redis does not stop a call
// under way when its context ends. So a caller can wait for the answer or for another event, and
// can leave at any time. There are as many goroutines as the largest number of calls under way at
// the same time. The goroutines are kept for later calls, because the stack of a new goroutine
// would have to grow again. The goroutine of an abandoned call is busy until the call returns. The
// zero value is ready for use.
type Pool struct {
	Store store.Store

	live    Tasks        // all goroutines, idle and busy
	hanging atomic.Int32 // number of abandoned calls under way

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

// step is a method of the Store that takes one Claim and returns one Grant: Store.Acquire or
// Store.Release.
type step func(store.Store, context.Context, store.Claim) (store.Grant, error)

// worker is one goroutine and its task: a job, or a step for which a caller may wait.
type worker struct {
	pool *Pool
	work chan struct{} // each signal starts one task; closing work ends the goroutine

	job func()

	step  step
	ctx   context.Context
	claim store.Claim
	grant store.Grant
	err   error
	fate  atomic.Int32
	done  chan struct{} // signalled when the answer has arrived, unless the call was abandoned
}

// These are the states (fates) of a call. The answer may arrive just when the caller abandons
// the call. Then the goroutine that is first to swap the fate decides whether the call counts
// as answered or as abandoned.
const (
	UnderWay int32 = iota
	Answered
	Abandoned
)

// Begin starts the step do with the given claim on a goroutine of the Pool, and returns the call as
// a Question. The caller of Begin waits for Answered, and then either takes the answer or abandons
// the call. After that, it does not use the Question again.
//
//	call := e.calls.begin(ctx, Store.Release, claim)
//	select {
//	case <-call.Answered():
//		grant, err := call.Answer()
//	case <-over:
//		call.Abandon()
//	}
func (cs *Pool) Begin(ctx context.Context, do step, claim store.Claim) Question {
	if cs.hanging.Load() >= mostHanging {
		r := make(refusedQuestion)
		close(r)
		return r
	}
	c := cs.takeWorker()
	c.step, c.ctx, c.claim = do, ctx, claim
	c.fate.Store(UnderWay)
	c.work <- struct{}{}
	return c
}

// Answer returns the answer of the Store. Answer may be called after a receive from Answered.
func (c *worker) Answer() (store.Grant, error) {
	grant, err := c.grant, c.err
	c.pool.park(c)
	return grant, err
}

// Answered is signalled when the answer has arrived.
func (c *worker) Answered() <-chan struct{} { return c.done }

// Abandon gives up the call, so that its answer is dropped.
func (c *worker) Abandon() (sent bool) {
	c.pool.hanging.Add(1)
	if !c.fate.CompareAndSwap(UnderWay, Abandoned) {
		c.pool.hanging.Add(-1)
		<-c.done // the answer came at the moment when the call was abandoned
		c.pool.park(c)
	}
	return true
}

// refusedQuestion is the Question of a step that was not begun, because too many abandoned calls
// hang.
type refusedQuestion chan struct{}

func (r refusedQuestion) Answered() <-chan struct{}  { return r }
func (refusedQuestion) Answer() (store.Grant, error) { return store.Grant{}, errHanging }
func (refusedQuestion) Abandon() (sent bool)         { return false }

// Do runs job on a goroutine of its own.
func (cs *Pool) Do(job func()) {
	c := cs.takeWorker()
	c.job = job
	c.work <- struct{}{}
}

// run executes the worker's tasks until the channel work is closed.
func (c *worker) run() {
	defer c.pool.live.Leave()
	for range c.work {
		if c.job != nil {
			c.job()
			c.pool.park(c)
			continue
		}
		c.grant, c.err = c.step(c.pool.Store, c.ctx, c.claim)
		if c.fate.CompareAndSwap(UnderWay, Answered) {
			c.done <- struct{}{}
		} else {
			c.pool.hanging.Add(-1)
			c.pool.park(c)
		}
	}
}

// takeWorker returns an idle worker, or a new worker if no worker is idle. No call is refused,
// because a Release after Close must still be sent.
func (cs *Pool) takeWorker() *worker {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if n := len(cs.idle); n > 0 {
		c := cs.idle[n-1]
		cs.idle[n-1] = nil
		cs.idle = cs.idle[:n-1]
		cs.spare = min(cs.spare, n-1)
		return c
	}
	c := &worker{pool: cs, work: make(chan struct{}, 1), done: make(chan struct{}, 1)}
	cs.live.Enter()
	go c.run()
	return c
}

// park keeps a worker that has ended its task for the next task.
func (cs *Pool) park(c *worker) {
	c.job, c.step, c.ctx, c.claim, c.grant, c.err = nil, nil, nil, store.Claim{}, store.Grant{}, nil
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed {
		close(c.work)
		return
	}
	cs.idle = append(cs.idle, c)
	if !cs.armed {
		cs.armed, cs.spare = true, 0
		if cs.trimmer == nil {
			cs.trimmer = time.AfterFunc(workerIdle, cs.trim)
		} else {
			cs.trimmer.Reset(workerIdle)
		}
	}
}

// trim ends the workers that were not needed since the last trim.
func (cs *Pool) trim() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.endIdle(cs.spare)
	if cs.armed = len(cs.idle) > 0; cs.armed {
		cs.trimmer.Reset(workerIdle)
	}
}

// endIdle ends n idle workers, those that have been idle for longest. The caller holds cs.mu.
func (cs *Pool) endIdle(n int) {
	for _, c := range cs.idle[:n] {
		close(c.work)
	}
	cs.idle = slices.Delete(cs.idle, 0, n)
	cs.spare = len(cs.idle)
}

// Stop waits until no call is under way and no goroutine is left, or until ctx ends.
func (cs *Pool) Stop(ctx context.Context) error {
	cs.mu.Lock()
	cs.closed = true
	cs.endIdle(len(cs.idle))
	if cs.trimmer != nil {
		cs.trimmer.Stop()
	}
	cs.mu.Unlock()
	return cs.live.Wait(ctx)
}
