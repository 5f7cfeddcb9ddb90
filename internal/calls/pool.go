// Package calls makes calls to Stores that their callers can abandon, and finishes in the
// background what was abandoned. It knows no locks and no servers.
package calls

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// Pool call the Store, each on a goroutine of its own, because go-redis does not stop a call in
// flight when its context ends: whoever asks races the answer against whatever else may happen
// first, and is free to go. There are as many as calls were ever under way at once; the goroutines
// are kept for the next calls, because a new one would grow its stack again and again. A caller
// whose call hangs after everybody has gone stays with it until it returns. The zero value is
// ready.
type Pool struct {
	Store store.Store

	live    Tasks        // the goroutines, idle or not
	hanging atomic.Int32 // steps that nobody waits for any more

	mu      sync.Mutex
	idle    []*caller   // a stack: the last one worked last, and its memory is the warmest
	spare   int         // the fewest that were idle at any time since trim: nobody needed these
	trimmer *time.Timer // runs while there may be idle ones
	armed   bool
	closed  bool
}

// callerIdle is how long a caller may be idle before it ends, give or take as much again.
const callerIdle = 30 * time.Second

// step is a call to the Store that has one Claim and one Grant: Store.Acquire or Store.Release.
type step func(store.Store, context.Context, store.Claim) (store.Grant, error)

// caller is one goroutine, and what it was told to do: a job, or a step that somebody may wait for.
type caller struct {
	of   *Pool
	work chan struct{} // a signal starts it; closed, it ends

	job func()

	step  step
	ctx   context.Context
	claim store.Claim
	grant store.Grant
	err   error
	fate  atomic.Int32
	done  chan struct{} // a signal when the answer is there, unless it was abandoned
}

// What becomes of a step. Answer and abandonment may come together: the first to swap the fate
// decides.
const (
	UnderWay int32 = iota
	Answered
	Abandoned
)

// Begin makes a call. Whoever began it waits for done, and then either takes the answer or
// abandons the call; after that the caller is not theirs any more.
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
		r := make(refused)
		close(r)
		return r
	}
	c := cs.take()
	c.step, c.ctx, c.claim = do, ctx, claim
	c.fate.Store(UnderWay)
	c.work <- struct{}{}
	return c
}

// Answer is what the Store said, after done.
func (c *caller) Answer() (store.Grant, error) {
	grant, err := c.grant, c.err
	c.of.put(c)
	return grant, err
}

// Answered is signalled when the answer is there.
func (c *caller) Answered() <-chan struct{} { return c.done }

// Abandon leaves the call alone: its answer is dropped when it comes.
func (c *caller) Abandon() (sent bool) {
	c.of.hanging.Add(1)
	if !c.fate.CompareAndSwap(UnderWay, Abandoned) {
		c.of.hanging.Add(-1)
		<-c.done // the answer came at this very moment
		c.of.put(c)
	}
	return true
}

// refused is a question that was not asked.
type refused chan struct{}

func (r refused) Answered() <-chan struct{}  { return r }
func (refused) Answer() (store.Grant, error) { return store.Grant{}, errHanging }
func (refused) Abandon() (sent bool)         { return false }

// Answer is what a call to a Store returned.
type Answer[T any] struct {
	Value T
	Err   error
}

// Ask is begin for everything else than steps. An answer that nobody waits for is dropped.
func Ask[T any](cs *Pool, call func() (T, error)) <-chan Answer[T] {
	ch := make(chan Answer[T], 1)
	cs.Do(func() {
		v, err := call()
		ch <- Answer[T]{v, err}
	})
	return ch
}

// Do runs job on a goroutine of its own.
func (cs *Pool) Do(job func()) {
	c := cs.take()
	c.job = job
	c.work <- struct{}{}
}

// run works until work is closed.
func (c *caller) run() {
	defer c.of.live.Leave()
	for range c.work {
		if c.job != nil {
			c.job()
			c.of.put(c)
			continue
		}
		c.grant, c.err = c.step(c.of.Store, c.ctx, c.claim)
		if c.fate.CompareAndSwap(UnderWay, Answered) {
			c.done <- struct{}{}
		} else {
			c.of.hanging.Add(-1)
			c.of.put(c)
		}
	}
}

// take finds an idle caller or makes one. It is never refused: a Release after Close is still sent.
func (cs *Pool) take() *caller {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if n := len(cs.idle); n > 0 {
		c := cs.idle[n-1]
		cs.idle[n-1] = nil
		cs.idle = cs.idle[:n-1]
		cs.spare = min(cs.spare, n-1)
		return c
	}
	c := &caller{of: cs, work: make(chan struct{}, 1), done: make(chan struct{}, 1)}
	cs.live.Enter()
	go c.run()
	return c
}

// put takes a caller back that has nothing to do.
func (cs *Pool) put(c *caller) {
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
			cs.trimmer = time.AfterFunc(callerIdle, cs.trim)
		} else {
			cs.trimmer.Reset(callerIdle)
		}
	}
}

// trim ends the callers that nobody has needed since it last looked.
func (cs *Pool) trim() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.end(cs.spare)
	if cs.armed = len(cs.idle) > 0; cs.armed {
		cs.trimmer.Reset(callerIdle)
	}
}

// end ends the n that are idle for longest; cs.mu is held.
func (cs *Pool) end(n int) {
	for _, c := range cs.idle[:n] {
		close(c.work)
	}
	cs.idle = slices.Delete(cs.idle, 0, n)
	cs.spare = len(cs.idle)
}

// Stop waits until no call is under way and no goroutine is left, at most until ctx ends.
func (cs *Pool) Stop(ctx context.Context) error {
	cs.mu.Lock()
	cs.closed = true
	cs.end(len(cs.idle))
	if cs.trimmer != nil {
		cs.trimmer.Stop()
	}
	cs.mu.Unlock()
	return cs.live.Wait(ctx)
}
