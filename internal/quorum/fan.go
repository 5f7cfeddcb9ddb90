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

func (s nodes) has(i int) bool    { return s&(1<<i) != 0 }
func (s nodes) plus(i int) nodes  { return s | 1<<i }
func (s nodes) minus(i int) nodes { return s &^ (1 << i) }
func (s nodes) count() int        { return bits.OnesCount32(uint32(s)) }

// fan is one step that is under way on several nodes at once. One goroutine at a time takes the
// answers, until they decide the step. If an answer comes after the decision, the call to that node
// handles it.
type fan[T any] struct {
	quorum *quorum
	quiet  func(T, error) bool
	wake   func() // called when answers that may decide the step have arrived, or the step's time is over
	timer  *time.Timer

	answers []answer[T]   // by node
	arrived atomic.Uint32 // nodes whose answers have arrived
	enough  int           // number of answers that may decide the step
	loud    atomic.Bool   // the function quiet returned false for one of the answers
	late    atomic.Bool   // the step's time is over

	bell chan struct{} // wakes the goroutine that waits in next; nil with a taker

	// The goroutine that takes the answers owns the fields below; with a taker, taker.mu guards
	// them.
	open    nodes // the nodes whose answers were not taken yet
	overdue bool  // the step does not wait any longer for the answers of the open nodes
}

// answer is the answer of one node.
type answer[T any] struct {
	node  int
	value T
	err   error
}

// newFan prepares a step on the nodes in targets. It calls the function wake, on any goroutine,
// when answers that may decide the step have arrived, or the step's time is over.
//
// If quiet returns true for an answer, this answer calls wake only when enough answers have
// arrived. Enough means a quorum, or the number of responsive nodes if this number is smaller. If
// quiet is nil, each answer calls wake.
func newFan[T any](q *quorum, targets nodes, quiet func(T, error) bool, wake func()) *fan[T] {
	f := &fan[T]{quorum: q, open: targets, quiet: quiet, wake: wake, answers: make([]answer[T], len(q.nodes))}
	responsive := 0
	for n := range q.eachNode(targets) {
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

// fanOut begins a step on the nodes in targets, for a caller that waits for the answers with next
// or remaining. It calls begin for each node. The function begin must not wait, and must pass the
// node's answer to onAnswer once, on any goroutine.
func fanOut[T any](q *quorum, targets nodes, quiet func(T, error) bool, begin func(n *node, onAnswer func(T, error))) *fan[T] {
	bell := make(chan struct{}, 1)
	f := newFan(q, targets, quiet, func() {
		select {
		case bell <- struct{}{}:
		default:
		}
	})
	f.bell = bell
	f.begin(targets, begin)
	return f
}

// taker takes the answers of a step for which no goroutine waits. The goroutine that brings an
// answer takes all answers that have arrived.
type taker[T any] struct {
	take    func(answer[T])
	decided func(more bool) bool // "more" is true if answers have arrived that were not taken yet
	end     func()               // called once when the step ends, on any goroutine

	mu    sync.Mutex
	fan   *fan[T]
	ended bool
}

// start begins a step on the nodes in targets. It returns at once, and the step may end before
// start returns. The parameters are those of fanOut.
func (t *taker[T]) start(q *quorum, targets nodes, quiet func(T, error) bool, begin func(n *node, onAnswer func(T, error))) {
	t.mu.Lock() // the step's time may be over before t.fan is set
	t.fan = newFan(q, targets, quiet, t.wake)
	t.mu.Unlock()
	t.fan.begin(targets, begin)
	t.wake() // a step on no nodes gets no answer, so no answer would call wake
}

// wake takes the answers that have arrived, and ends the step when they decide it.
func (t *taker[T]) wake() {
	t.mu.Lock()
	if t.ended || !t.drain() {
		t.mu.Unlock()
		return
	}
	t.ended = true
	t.mu.Unlock()
	t.fan.stop()
	t.end()
}

// drain takes the answers that have arrived. It returns true when they decide the step, or when
// there is no answer left to wait for.
func (t *taker[T]) drain() bool {
	for !t.decided(t.fan.ready() != 0) {
		a, ok, ended := t.fan.tryNext()
		if !ok {
			return ended
		}
		t.take(a)
	}
	return true
}

// begin calls the function begin for each node in targets.
func (f *fan[T]) begin(targets nodes, begin func(n *node, onAnswer func(T, error))) {
	for n := range f.quorum.eachNode(targets) {
		begin(n, func(v T, err error) { f.recordAnswer(n, v, err) })
	}
}

// async turns the function step, which waits for a node's answer, into a function begin for fanOut,
// which does not wait.
func async[T any](step func(n *node) (T, error)) func(n *node, onAnswer func(T, error)) {
	return func(n *node, onAnswer func(T, error)) { n.links.Pool.Do(func() { onAnswer(step(n)) }) }
}

// recordAnswer records the answer (v, err) of node n.
func (f *fan[T]) recordAnswer(n *node, v T, err error) {
	n.recordEnd(err)
	f.answers[n.index] = answer[T]{n.index, v, err}
	if f.quiet == nil || !f.quiet(v, err) {
		f.loud.Store(true)
	}
	arrived := nodes(f.arrived.Or(1 << n.index)).plus(n.index)
	if arrived.count() >= f.enough || f.loud.Load() {
		f.wake()
	}
}

// ready returns the set of nodes whose answers have arrived and were not taken yet.
func (f *fan[T]) ready() nodes { return nodes(f.arrived.Load()) & f.open }

// tryNext takes an answer that has arrived. The result ok is false if no answer has arrived. Then
// the result ended reports whether the wait for answers has ended. The wait ends when all nodes
// have answered, or when the step's time is over. It also ends when all open nodes are unresponsive
// and the other nodes are a quorum.
func (f *fan[T]) tryNext() (a answer[T], ok, ended bool) {
	if ready := f.ready(); ready != 0 {
		i := bits.TrailingZeros32(uint32(ready))
		f.open = f.open.minus(i)
		return f.answers[i], true, false
	}
	if late := f.late.Load(); !f.overdue && (late || f.hopeless()) {
		f.overdue = true
		for n := range f.quorum.eachNode(f.open) {
			if late {
				n.failed.Store(fewFailures)
			}
		}
		return f.tryNext()
	}
	return answer[T]{}, false, f.open == 0 || f.overdue
}

// next waits for an answer, and returns it. It returns false when there is no answer to wait for.
func (f *fan[T]) next() (answer[T], bool) {
	for {
		if a, ok, ended := f.tryNext(); ok || ended {
			return a, ok
		}
		<-f.bell
	}
}

// remaining yields the answers that were not taken yet, each with its node, until there is no
// answer left to wait for.
func (f *fan[T]) remaining(yield func(*node, answer[T]) bool) {
	for {
		a, ok := f.next()
		if !ok || !yield(f.quorum.nodes[a.node], a) {
			return
		}
	}
}

// silentErrors returns an error for each node that has not answered.
func (f *fan[T]) silentErrors() (errs []error) {
	for n := range f.quorum.eachNode(f.open) {
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

// stop ends the wait for answers. Calls that have no answer yet continue.
func (f *fan[T]) stop() {
	f.timer.Stop()
	f.quorum.active.Add(-1)
}

const (
	// fewFailures is the number of calls in a row that must fail at a node before steps stop
	// waiting for that node. It is not 1, because a single failure can have many causes. A call
	// without an answer in time counts as fewFailures failures.
	fewFailures = 3
	// mostPending is the largest number of calls that may be under way on a node while no caller
	// waits for them.
	mostPending = 16
)

// responsive reports whether one of the node's last few calls succeeded. Steps wait for a
// responsive node; a node that refuses is not waited for either.
func (n *node) responsive() bool { return n.failed.Load() < fewFailures }

// recordEnd records that a call at the node has ended, with the error err or with success.
func (n *node) recordEnd(err error) {
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

// lags reports whether node n has so many calls without an answer that it gets no further calls.
// The link has its own limit for the calls to a node that hangs. The limit here is lower, so that
// few acquires must be undone at the node later.
func (q *quorum) lags(n *node) bool {
	return n.underWay.Load()-q.active.Load() > mostPending
}
