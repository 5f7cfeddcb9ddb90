package calls

import (
	"context"
	"sync/atomic"

	"github.com/latchkit/latchkit/locker/store"
)

// started is a step of a [Starter] for which a caller may wait.
type started struct {
	pool  *Pool
	grant store.Grant
	err   error
	fate  atomic.Int32
	done  chan struct{} // signalled when the answer has arrived, unless the step was abandoned
}

// start begins a step of a Starter. At most mostHanging steps of Starters may be under way
// after their callers have abandoned them.
func (cs *Pool) start(ctx context.Context, c store.Claim, begin Start) Question {
	if cs.hanging.Load() >= mostHanging {
		r := make(refusedQuestion)
		close(r)
		return r
	}
	s := &started{pool: cs, done: make(chan struct{}, 1)}
	begin(ctx, c, s.deliver)
	return s
}

func (s *started) deliver(g store.Grant, err error) {
	s.grant, s.err = g, err
	if s.fate.CompareAndSwap(UnderWay, Answered) {
		s.done <- struct{}{}
	} else {
		s.pool.hanging.Add(-1)
	}
}

// Answered is signalled when the answer has arrived.
func (s *started) Answered() <-chan struct{} { return s.done }

// Answer returns the answer of the Store. Answer may be called after a receive from Answered.
func (s *started) Answer() (store.Grant, error) { return s.grant, s.err }

// Abandon gives up the step, so that its answer is dropped.
func (s *started) Abandon() (sent bool) {
	s.pool.hanging.Add(1)
	if !s.fate.CompareAndSwap(UnderWay, Abandoned) {
		s.pool.hanging.Add(-1)
	}
	return true
}
