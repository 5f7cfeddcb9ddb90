package quorum

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
)

// nodes is a set of nodes of a quorum: bit i is node i.
type nodes uint32

func (s nodes) has(i int) bool      { return s&(1<<i) != 0 }
func (s nodes) with(i int) nodes    { return s | 1<<i }
func (s nodes) without(i int) nodes { return s &^ (1 << i) }
func (s nodes) count() int          { return bits.OnesCount32(uint32(s)) }

// fan is one step that is under way on several nodes at once. Whoever sent it takes answers until
// they decide; all others come later, and are the business of the call itself: it goes on, on its
// own goroutine, when nobody listens any more.
type fan[T any] struct {
	quorum  *quorum
	answers chan said[T]  // room for all
	bell    chan struct{} // there are answers that may decide something; room for one
	open    nodes         // those whose answer was not taken
	timer   *time.Timer
	overdue bool
	fates   []atomic.Int32

	said atomic.Int32 // answers
	loud atomic.Bool  // one of them was not quiet
}

// said is one node's answer.
type said[T any] struct {
	node  int
	value T
	err   error
}

// fanOut calls some nodes. call is made on one goroutine for each.
//
// Quiet answers decide nothing as long as all are quiet and fewer than a quorum, or than the nodes
// that are worth waiting for: so whoever waits is not woken by each of them. nil: no answer is
// quiet.
func fanOut[T any](q *quorum, to nodes, quiet func(T, error) bool, call func(n *node) (T, error)) *fan[T] {
	f := &fan[T]{
		quorum: q, open: to, answers: make(chan said[T], len(q.nodes)), bell: make(chan struct{}, 1),
		fates: make([]atomic.Int32, len(q.nodes)),
	}
	prompt := 0
	for n := range q.each(to) {
		if n.prompt() {
			prompt++
		}
	}
	enough := int32(min(q.need, prompt)) //nolint:gosec // at most mostNodes
	q.active.Add(1)
	for i, n := range q.nodes {
		if !to.has(i) {
			continue
		}
		n.underWay.Add(1)
		q.calls.Do(func() {
			v, err := call(n)
			n.underWay.Add(-1)
			if err != nil {
				n.failed.Add(1)
				n.last.Store(&err)
			} else {
				n.failed.Store(0)
				n.last.Store(nil)
			}
			if !f.fates[i].CompareAndSwap(calls.UnderWay, calls.Answered) {
				n.late.Add(-1)
			}
			f.answers <- said[T]{i, v, err}
			if quiet == nil || !quiet(v, err) {
				f.loud.Store(true)
			}
			if f.said.Add(1) >= enough || f.loud.Load() {
				f.ring()
			}
		})
	}
	f.timer = q.timers.Start(q.patience)
	return f
}

// ring wakes whoever waits.
func (f *fan[T]) ring() {
	select {
	case f.bell <- struct{}{}:
	default:
	}
}

// next waits for an answer. It is false when there is none to wait for: all have answered, or their
// time is over. A node that has not answered an earlier call in time, or the last few at all, is
// not waited for, while the others are enough.
func (f *fan[T]) next() (said[T], bool) {
	for {
		a, ok := f.ready()
		switch {
		case ok, f.open == 0, f.overdue:
			return a, ok
		case f.onlyLate():
			f.overdue = true
			return f.ready()
		}
		select {
		case <-f.bell:
		case <-f.timer.C:
			f.overdue = true
			for i, n := range f.quorum.nodes {
				if f.open.has(i) && f.fates[i].CompareAndSwap(calls.UnderWay, calls.Abandoned) {
					n.late.Add(1)
				}
			}
		}
	}
}

// ready takes an answer that is there already.
func (f *fan[T]) ready() (said[T], bool) {
	select {
	case a := <-f.answers:
		f.open = f.open.without(a.node)
		return a, true
	default:
		return said[T]{}, false
	}
}

// prompt says whether a node is worth waiting for: it is not late with another call, and has
// answered one of the last few.
func (n *node) prompt() bool { return n.late.Load() == 0 && n.failed.Load() < fewFailures }

// onlyLate says whether those that are still open are not worth waiting for, and the others are a
// quorum.
func (f *fan[T]) onlyLate() bool {
	prompt := 0
	for i, n := range f.quorum.nodes {
		if n.prompt() {
			prompt++
			if f.open.has(i) {
				return false
			}
		}
	}
	return prompt >= f.quorum.need
}

// fewFailures is how many calls in a row must fail until a node is not waited for. One says little.
const fewFailures = 3

// done ends the wait. What is still open goes on by itself.
func (f *fan[T]) done() {
	f.quorum.timers.Stop(f.timer)
	f.quorum.active.Add(-1)
}

// behind says whether a node lags so far behind the others that it is left alone: calls that nobody
// waits for any more must not pile up on one that hangs or is slow.
func (q *quorum) behind(n *node) bool {
	return n.underWay.Load()-q.active.Load() > mostBehind
}

// mostBehind is how many calls may be under way on a node that nobody waits for.
const mostBehind = 16
