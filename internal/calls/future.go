package calls

import (
	"errors"
	"sync/atomic"

	"github.com/latchkit/latchkit/internal/store"
)

// A Future is a step of a Store that is under way. The code that begins a step either gives a
// function onAnswer, which receives the answer, or waits. The caller that waits then either takes
// the answer or abandons the step, and does not use the Future again.
//
//	f := steps.Begin(ctx, calls.Release, claim, nil)
//	select {
//	case <-f.Answered():
//		grant, err := f.Answer()
//	case <-over:
//		f.Abandon()
//	}
//
// The zero value is a step under way whose caller waits. Who makes the step calls Deliver.
type Future struct {
	onAnswer func(store.Grant, error) // nil: a caller waits for Answered
	call     Call                     // nil: the step cannot be taken out of the list
	pool     *Pool                    // counts the abandoned step, and keeps the channel done; may be nil

	fate  atomic.Int32
	done  chan struct{} // signalled when the answer has arrived; nil: no caller has called Answered
	grant store.Grant
	err   error
}

// Call is the call to a server that makes a step.
type Call interface {
	// Leave drops the answer. The result sent is false if the call was not sent and never will be.
	Leave() (sent bool)
}

// These are the states (fates) of a step. The answer may arrive just when the caller abandons the
// step, or begins to wait. Then the goroutine that is first to change the fate decides.
const (
	underWay int32 = iota // no caller has called Answered
	awaited               // a caller waits for the signal
	answered
	abandoned
)

// Init prepares a Future whose step is made by call. Init is for a Future inside another object, so
// that both need one allocation.
func (f *Future) Init(p *Pool, call Call, onAnswer func(store.Grant, error)) {
	f.pool, f.call, f.onAnswer = p, call, onAnswer
}

// Settled returns the Future of a step that has the answer (g, err) without any call.
func Settled(g store.Grant, err error, onAnswer func(store.Grant, error)) *Future {
	f := &Future{onAnswer: onAnswer}
	f.Deliver(g, err)
	return f
}

// Deliver gives the answer to the step's caller. A function onAnswer receives only the first
// answer. Otherwise, Deliver must be called once.
func (f *Future) Deliver(g store.Grant, err error) {
	if f.onAnswer != nil {
		if f.fate.Swap(answered) != answered {
			f.onAnswer(g, err)
		}
		return
	}
	f.grant, f.err = g, err
	switch f.fate.Swap(answered) {
	case awaited:
		f.done <- struct{}{}
	case abandoned:
		f.pool.hanging.Add(-1)
	}
}

// closedSignal is the channel of all steps that are answered when their callers begin to wait.
var closedSignal = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Answered returns a channel that is signalled once, when the answer has arrived.
func (f *Future) Answered() <-chan struct{} {
	if f.fate.Load() == answered && f.done == nil {
		return closedSignal
	}
	if f.done == nil {
		f.done = f.pool.signal()
		if !f.fate.CompareAndSwap(underWay, awaited) {
			f.done = nil // the answer has arrived, and has not used the channel
			return closedSignal
		}
	}
	return f.done
}

// Answer returns the answer of the Store. Answer may be called after a receive from Answered.
func (f *Future) Answer() (store.Grant, error) {
	if f.done != nil && f.pool != nil {
		f.pool.signals.Put(f.done) // done is empty and can be used again, because a step is signalled only once
	}
	f.done = nil
	return f.grant, f.err
}

// Abandon gives up the step, so that its answer is dropped. The result sent is true if the server
// may execute the step, or has executed it.
func (f *Future) Abandon() (sent bool) {
	if f.call != nil {
		return f.call.Leave()
	}
	if f.pool != nil {
		f.pool.hanging.Add(1)
		if f.fate.Swap(abandoned) == answered { // the answer came at the moment when the step was abandoned
			f.pool.hanging.Add(-1)
			return !errors.Is(f.err, errHanging) // a step that was refused was not sent
		}
	}
	return true
}

// mostHanging is the largest number of abandoned steps and renewals of a Pool that may be under way
// when a new step begins. A renewal may still save its lease, so it is refused later.
const mostHanging, mostRenewing = 64, 96

var errHanging = &store.Refusal{Temporary: true, Err: errors.New("too many calls of the Store hang; the call was not made")}

// Future returns the Future of a step that is about to begin. If too many abandoned steps hang, the
// result ok is false, and the step is refused already.
func (p *Pool) Future(onAnswer func(store.Grant, error)) (f *Future, ok bool) {
	f = &Future{pool: p, onAnswer: onAnswer}
	if ok = p.hanging.Load() < mostHanging; !ok {
		f.Deliver(store.Grant{}, errHanging)
	}
	return f, ok
}

// signal returns a channel for one signal.
func (p *Pool) signal() chan struct{} {
	if p != nil {
		if c, ok := p.signals.Get().(chan struct{}); ok {
			return c
		}
	}
	return make(chan struct{}, 1)
}
