package quorum

import (
	"context"
	"errors"
	"math/bits"
	"sync"
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

// fan is one step that is under way on several nodes at once. One goroutine at a time takes the
// answers, until they decide the step. If an answer comes after the decision, the call to that
// node handles it.
type fan[T any] struct {
	quorum *quorum
	quiet  func(T, error) bool
	wake   func() // called when answers that may decide the step have arrived, or the step's time is over
	timer  *time.Timer

	answers []answer[T]   // by node
	arrived atomic.Uint32 // nodes whose answers have arrived
	enough  int           // number of answers that may decide the step
	loud    atomic.Bool   // quiet was false for one of the answers
	late    atomic.Bool   // the step's time is over

	open    nodes // the nodes whose answers were not taken yet
	overdue bool  // the step does not wait any longer for the answers of the open nodes
	bell    chan struct{}
}

// answer is the answer of one node.
type answer[T any] struct {
	node  int
	value T
	err   error
}

// newFan prepares a step on some nodes. The function wake may be called on any goroutine.
//
// If quiet returns true for an answer, this answer calls wake only when enough answers have
// arrived. Enough means a quorum, or the number of responsive nodes if this number is smaller. If
// quiet is nil, each answer calls wake.
func newFan[T any](q *quorum, to nodes, quiet func(T, error) bool, wake func()) *fan[T] {
	f := &fan[T]{quorum: q, open: to, quiet: quiet, wake: wake, answers: make([]answer[T], len(q.nodes))}
	responsive := 0
	for n := range q.each(to) {
		n.underWay.Add(1)
		if n.responsive() {
			responsive++
		}
	}
	f.enough = min(q.need, responsive)
	q.active.Add(1)
	f.timer = time.AfterFunc(q.patience, func() {
		f.late.Store(true)
		f.wake()
	})
	return f
}

// fanOut begins a step for a caller that waits for the answers with next or rest. The function
// begin must not wait. It must call the function answered once with the answer, on any goroutine.
func fanOut[T any](q *quorum, to nodes, quiet func(T, error) bool, begin func(n *node, answered func(T, error))) *fan[T] {
	bell := make(chan struct{}, 1)
	f := newFan(q, to, quiet, func() {
		select {
		case bell <- struct{}{}:
		default:
		}
	})
	f.bell = bell
	f.begin(to, begin)
	return f
}

// taker takes the answers of a step for which no goroutine waits. The goroutine that brings an
// answer takes all answers that have arrived.
type taker[T any] struct {
	take    func(answer[T])
	decided func(more bool) bool // "more" is true if answers have arrived that were not taken yet
	end     func()               // called once, on any goroutine

	mu   sync.Mutex
	fan  *fan[T]
	over bool
}

// start begins a step. It returns at once, and the step may end before start returns.
func (t *taker[T]) start(q *quorum, to nodes, quiet func(T, error) bool, begin func(n *node, answered func(T, error))) {
	t.mu.Lock() // the step's time may be over before t.fan is set
	t.fan = newFan(q, to, quiet, t.wake)
	t.mu.Unlock()
	t.fan.begin(to, begin)
	t.wake() // a step on no nodes gets no answer, so no answer would call wake
}

func (t *taker[T]) wake() {
	t.mu.Lock()
	if t.over || !t.drain() {
		t.mu.Unlock()
		return
	}
	t.over = true
	t.mu.Unlock()
	t.fan.done()
	t.end()
}

// drain takes the answers that have arrived. It returns true when they decide the step, or when
// there is no answer left to wait for.
func (t *taker[T]) drain() bool {
	for !t.decided(t.fan.there() != 0) {
		a, ok, over := t.fan.poll()
		if !ok {
			return over
		}
		t.take(a)
	}
	return true
}

func (f *fan[T]) begin(to nodes, begin func(n *node, answered func(T, error))) {
	for n := range f.quorum.each(to) {
		begin(n, func(v T, err error) { f.answer(n, v, err) })
	}
}

// waiting turns a step that waits for its answer into a function begin, which does not wait.
func waiting[T any](step func(n *node) (T, error)) func(n *node, answered func(T, error)) {
	return func(n *node, answered func(T, error)) { n.links.Go(func() { answered(step(n)) }) }
}

// answer records a node's answer.
func (f *fan[T]) answer(n *node, v T, err error) {
	n.answered(err)
	f.answers[n.index] = answer[T]{n.index, v, err}
	if f.quiet == nil || !f.quiet(v, err) {
		f.loud.Store(true)
	}
	arrived := nodes(f.arrived.Or(1 << n.index)).with(n.index)
	if arrived.count() >= f.enough || f.loud.Load() {
		f.wake()
	}
}

// there returns the set of nodes whose answers have arrived and were not taken yet.
func (f *fan[T]) there() nodes { return nodes(f.arrived.Load()) & f.open }

// poll takes an answer that has arrived. If no answer has arrived, the result over reports whether
// the wait is over. The wait is over when all nodes have answered, or when the step's time is over.
// It is also over when all open nodes are unresponsive and the other nodes are a quorum.
func (f *fan[T]) poll() (a answer[T], ok, over bool) {
	if there := f.there(); there != 0 {
		i := bits.TrailingZeros32(uint32(there))
		f.open = f.open.without(i)
		return f.answers[i], true, false
	}
	if late := f.late.Load(); !f.overdue && (late || f.hopeless()) {
		f.overdue = true
		for n := range f.quorum.each(f.open) {
			if late {
				n.failed.Store(fewFailures)
			}
		}
		return f.poll()
	}
	return answer[T]{}, false, f.open == 0 || f.overdue
}

// next waits for an answer. It returns false when there is no answer to wait for.
func (f *fan[T]) next() (answer[T], bool) {
	for {
		if a, ok, over := f.poll(); ok || over {
			return a, ok
		}
		<-f.bell
	}
}

// rest yields the answers that were not taken yet, until there is no answer left to wait for.
func (f *fan[T]) rest(yield func(*node, answer[T]) bool) {
	for {
		a, ok := f.next()
		if !ok || !yield(f.quorum.nodes[a.node], a) {
			return
		}
	}
}

// silent returns an error for each node that has not answered.
func (f *fan[T]) silent() (errs []error) {
	for n := range f.quorum.each(f.open) {
		errs = append(errs, n.error(errSilent))
	}
	return errs
}

// hopeless reports whether the responsive nodes are a quorum and all of them have answered, so the
// step waits only for unresponsive nodes.
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

// done ends the wait. Calls that have no answer yet continue.
func (f *fan[T]) done() {
	f.timer.Stop()
	f.quorum.active.Add(-1)
}

const (
	// fewFailures is the number of calls in a row that must fail at a node before steps stop
	// waiting for that node. It is not 1, because a single failure can have many causes. A call
	// without an answer in time counts as fewFailures failures.
	fewFailures = 3
	// mostBehind is the largest number of calls that may be under way on a node while no caller
	// waits for them.
	mostBehind = 16
)

// responsive reports whether the node has answered one of the last few calls. Steps wait for such
// a node.
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

// close waits until no call is under way at the node. Then it waits for the releases that the node
// has not confirmed. It returns at the latest when ctx ends. The wait for the calls comes first,
// because a late vote needs a release, and closed links accept no releases.
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

// behind reports whether a node lags so far behind the others that it gets no calls. The link has
// its own limit for the calls to a node that hangs. The limit here is lower, so that few acquires
// must be undone at the node later.
func (q *quorum) behind(n *node) bool {
	return n.underWay.Load()-q.active.Load() > mostBehind
}
