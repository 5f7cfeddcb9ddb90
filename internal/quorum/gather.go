package quorum

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/link"
)

// nodes is a set of nodes of a quorum: bit i is node i.
type nodes uint32

func (s nodes) has(i int) bool    { return s&(1<<i) != 0 }
func (s nodes) plus(i int) nodes  { return s | 1<<i }
func (s nodes) minus(i int) nodes { return s &^ (1 << i) }
func (s nodes) count() int        { return bits.OnesCount32(uint32(s)) }
func (s nodes) first() int        { return bits.TrailingZeros32(uint32(s)) }

// gathering is one step on several nodes at once.
type gathering struct {
	quorum  *quorum
	decided func() bool
	then    func(open nodes)

	mu    sync.Mutex
	open  nodes       // the nodes that have not answered
	timer *time.Timer // set when all calls were made
	ended bool
}

// gather begins one step on the nodes in targets, and does not wait. It calls the function call for
// each node. This function must not wait, and must pass the node's answer to onAnswer once, on any
// goroutine. The function take gets one answer after the other; late is true for an answer that
// comes after the end of the step.
//
// The step ends when all nodes have answered, when decided returns true, or when the time within is
// over. It also ends when it waits only for unresponsive nodes and the other nodes are a quorum. If
// decided is nil, only the first and the third of these ends are possible. At the end, the function
// then gets the nodes that have not answered, on the goroutine of the last answer.
func gather[T any](q *quorum, within time.Duration, targets nodes, call func(n *node, onAnswer func(T, error)),
	decided func() bool, take func(i int, v T, err error, late bool), then func(open nodes),
) {
	g := &gathering{quorum: q, decided: decided, then: then, open: targets}
	for n := range q.eachNode(targets) {
		n.calls.Enter()
		call(n, func(v T, err error) {
			defer n.calls.Leave()
			n.noteEnd(err)
			g.mu.Lock()
			if g.ended {
				n.behind.Add(-1)
			} else {
				g.open = g.open.minus(n.index)
			}
			take(n.index, v, err, g.ended)
			g.end(false)
		})
	}
	g.mu.Lock()
	g.timer = time.AfterFunc(within, func() {
		g.mu.Lock()
		g.end(true)
	})
	g.end(false) // a step on no nodes, or on unresponsive nodes, gets no answer
}

// end ends the step if it is over. The caller has locked g.mu, which end unlocks.
func (g *gathering) end(late bool) {
	if g.ended || g.timer == nil || !late && g.open != 0 && (g.decided == nil || !g.decided() && !g.quorum.isHopeless(g.open)) {
		g.mu.Unlock()
		return
	}
	g.ended = true
	g.timer.Stop()
	for n := range g.quorum.eachNode(g.open) {
		n.behind.Add(1)
		if late {
			n.failed.Store(fewFailures)
		}
	}
	g.mu.Unlock()
	g.then(g.open)
}

// isHopeless reports whether all nodes in open are unresponsive and the other nodes are a quorum.
func (q *quorum) isHopeless(open nodes) bool {
	responsive := 0
	for i, n := range q.nodes {
		if n.failed.Load() < fewFailures {
			responsive++
			if open.has(i) {
				return false
			}
		}
	}
	return responsive >= q.need
}

// gatherAll does the work of gather, and waits for the end of the step. Late answers are dropped.
func gatherAll[T any](q *quorum, within time.Duration, call func(n *node, onAnswer func(T, error)), decided func() bool, take func(i int, v T, err error)) (open nodes) {
	over := make(chan nodes, 1)
	gather(q, within, q.allNodes(), call, decided, func(i int, v T, err error, late bool) {
		if !late {
			take(i, v, err)
		}
	}, func(open nodes) { over <- open })
	return <-over
}

// answers are the answers of all nodes. A node that has not answered has errSilent.
type answers[T any] struct {
	quorum *quorum
	values []T
	errs   []error
}

// askEach asks all nodes at once by the function ask, which may wait, and returns the answers.
func askEach[T any](q *quorum, within time.Duration, ask func(n *node) (T, error), decided func(answers[T]) bool) answers[T] {
	all := answers[T]{q, make([]T, len(q.nodes)), slices.Repeat([]error{errSilent}, len(q.nodes))}
	var enough func() bool
	if decided != nil {
		enough = func() bool { return decided(all) }
	}
	gatherAll(q, within, func(n *node, onAnswer func(T, error)) {
		n.links.Pool.Do(func() { onAnswer(ask(n)) })
	}, enough, func(i int, v T, err error) { all.values[i], all.errs[i] = v, err })
	return all
}

// received returns the nodes that have answered without an error.
func (a answers[T]) received() (set nodes) {
	for i, err := range a.errs {
		if err == nil {
			set = set.plus(i)
		}
	}
	return set
}

// tooFew returns nil if a quorum of nodes has answered without an error. Otherwise it returns
// ErrQuorum. The parameter predicate describes what the other nodes did.
func (a answers[T]) tooFew(predicate string) error {
	if n := a.received().count(); n < a.quorum.need {
		return a.quorum.errTooFew(predicate, n, a.errs)
	}
	return nil
}

// most returns the value that most of the nodes in set have, and these nodes.
func most[K comparable](q *quorum, set nodes, value func(i int) K) (v K, same nodes) {
	for n := range q.eachNode(set) {
		k, these := value(n.index), nodes(0)
		for m := range q.eachNode(set) {
			if value(m.index) == k {
				these = these.plus(m.index)
			}
		}
		if these.count() > same.count() {
			v, same = k, these
		}
	}
	return v, same
}

const (
	// fewFailures is the number of calls in a row that must fail at a node before steps stop
	// waiting for that node. It is not 1, because a single failure can have many causes. A call
	// without an answer in time counts as fewFailures failures.
	fewFailures = 3
	// mostBehind is the largest number of calls that may be under way at a node after the end of
	// their steps. The link has its own limit for the calls to a node that hangs. This limit is
	// lower, so that few acquires must be undone at the node later.
	mostBehind = 16
)

// lags reports whether the node has so many calls without an answer that it gets no further votes
// and releases.
func (n *node) lags() bool { return n.behind.Load() > mostBehind }

// noteEnd records that a call at the node has ended, with the error err or with success. A node
// that refuses counts as one that fails: no step waits for it.
func (n *node) noteEnd(err error) {
	switch {
	case err == nil:
		n.failed.Store(0)
	case errors.Is(err, link.ErrNoAnswer):
		n.failed.Add(fewFailures)
	default:
		n.failed.Add(1)
	}
}

// close waits until no call is under way at the node. Then it waits for the releases that the node
// has not confirmed. It returns at the latest when ctx ends. The wait for the calls comes first,
// because a late vote needs a release, and closed links accept no releases.
func (n *node) close(ctx context.Context) error {
	_ = n.calls.Wait(ctx)
	return n.links.Close(ctx)
}
