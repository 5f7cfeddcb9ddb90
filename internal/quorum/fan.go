package quorum

import (
	"context"
	"errors"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/link"
)

// nodes is a set of nodes of a quorum: bit i is node i.
type nodes uint32

func (s nodes) has(i int) bool      { return s&(1<<i) != 0 }
func (s nodes) with(i int) nodes    { return s | 1<<i }
func (s nodes) without(i int) nodes { return s &^ (1 << i) }
func (s nodes) count() int          { return bits.OnesCount32(uint32(s)) }

// fan is one step that is under way on several nodes at once. Its caller takes answers until they
// decide the step. The calls themselves handle later answers.
type fan[T any] struct {
	quorum  *quorum
	answers chan answer[T] // room for all
	bell    chan struct{}  // signalled when there are answers that may decide the step; room for one
	open    nodes          // nodes whose answers the caller has not taken
	timer   *time.Timer
	overdue bool

	arrived atomic.Int32 // number of answers
	loud    atomic.Bool  // one of them was not quiet
}

// answer is the answer of one node.
type answer[T any] struct {
	node  int
	value T
	err   error
}

// fanOut begins a call to some nodes. begin does not wait: it calls answered once with the answer,
// on any goroutine.
//
// An answer for which quiet is true does not wake the caller until the number of answers reaches
// the size of a quorum, or the number of responsive nodes. With quiet nil, each answer wakes the
// caller.
func fanOut[T any](q *quorum, to nodes, quiet func(T, error) bool, begin func(n *node, answered func(T, error))) *fan[T] {
	f := &fan[T]{quorum: q, open: to, answers: make(chan answer[T], len(q.nodes)), bell: make(chan struct{}, 1)}
	responsive := 0
	for n := range q.each(to) {
		n.underWay.Add(1)
		if n.responsive() {
			responsive++
		}
	}
	enough := int32(min(q.need, responsive)) //nolint:gosec // at most mostNodes
	q.active.Add(1)
	f.timer = q.timers.Start(q.patience)
	for n := range q.each(to) {
		begin(n, func(v T, err error) {
			n.answered(err)
			f.answers <- answer[T]{n.index, v, err}
			if quiet == nil || !quiet(v, err) {
				f.loud.Store(true)
			}
			if f.arrived.Add(1) >= enough || f.loud.Load() {
				f.ring()
			}
		})
	}
	return f
}

// waiting makes a begin function of a step that waits for its answer.
func waiting[T any](step func(n *node) (T, error)) func(n *node, answered func(T, error)) {
	return func(n *node, answered func(T, error)) { n.links.Go(func() { answered(step(n)) }) }
}

// ring wakes the caller.
func (f *fan[T]) ring() {
	select {
	case f.bell <- struct{}{}:
	default:
	}
}

// next waits for an answer. It returns false when there is no answer to wait for: all nodes have
// answered, the time is over, or all open nodes are unresponsive and the others are a quorum.
func (f *fan[T]) next() (answer[T], bool) {
	for {
		a, ok := f.ready()
		switch {
		case ok, f.open == 0, f.overdue:
			return a, ok
		case f.hopeless():
			f.overdue = true
			return f.ready()
		}
		select {
		case <-f.bell:
		case <-f.timer.C:
			f.overdue = true
			for n := range f.quorum.each(f.open) {
				n.failed.Store(fewFailures)
			}
		}
	}
}

// ready takes an answer that has come already.
func (f *fan[T]) ready() (answer[T], bool) {
	select {
	case a := <-f.answers:
		f.open = f.open.without(a.node)
		return a, true
	default:
		return answer[T]{}, false
	}
}

// rest yields the answers that are still worth waiting for.
func (f *fan[T]) rest(yield func(*node, answer[T]) bool) {
	for {
		a, ok := f.next()
		if !ok || !yield(f.quorum.nodes[a.node], a) {
			return
		}
	}
}

// silent is an error for each node that has not answered.
func (f *fan[T]) silent() (errs []error) {
	for n := range f.quorum.each(f.open) {
		errs = append(errs, n.error(errSilent))
	}
	return errs
}

// hopeless reports whether no open node responds, and the responsive nodes are a quorum.
func (f *fan[T]) hopeless() bool {
	responsive := 0
	for i, n := range f.quorum.nodes {
		if n.responsive() {
			responsive++
			if f.open.has(i) {
				return false
			}
		}
	}
	return responsive >= f.quorum.need
}

// done ends the wait. The calls that are still open go on by themselves.
func (f *fan[T]) done() {
	f.quorum.timers.Stop(f.timer)
	f.quorum.active.Add(-1)
}

const (
	// fewFailures is the number of calls in a row that must fail until steps do not wait for the
	// node. A single failure can have many causes. A call without an answer in time counts as
	// fewFailures failures.
	fewFailures = 3
	// mostBehind is how many calls without a waiting caller may be under way on a node.
	mostBehind = 16
)

// responsive reports whether steps wait for the node: it has answered one of the last few calls.
func (n *node) responsive() bool { return n.failed.Load() < fewFailures }

// answered records the end of a call.
func (n *node) answered(err error) {
	if n.underWay.Add(-1) == 0 {
		select {
		case n.landed <- struct{}{}:
		default:
		}
	}
	switch {
	case err == nil:
		n.failed.Store(0)
		n.last.Store(nil)
		return
	case errors.Is(err, link.ErrNoAnswer):
		n.failed.Add(fewFailures)
	default:
		n.failed.Add(1)
	}
	n.last.Store(&err)
}

// close waits until no call is under way at the node, and then for the releases that the node has
// not confirmed, at most until ctx ends. The order matters: a vote that comes late needs a release,
// and the links take none after their end.
func (n *node) close(ctx context.Context) error {
	for n.underWay.Load() > 0 {
		select {
		case <-n.landed:
			continue
		case <-ctx.Done():
		}
		break
	}
	return n.links.Close(ctx)
}

// behind reports whether a node lags so far behind the others that it gets no calls. The link
// bounds the calls to a node that hangs. This bound keeps the number of acquires small that must be
// undone at the node later.
func (q *quorum) behind(n *node) bool {
	return n.underWay.Load()-q.active.Load() > mostBehind
}
