package quorum

import (
	"context"
	"errors"
	"math/bits"
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

// gather is one step that is under way on several nodes at once. The goroutine that brings an
// answer takes it.
type gather[T any] struct {
	quorum  *quorum
	take    func(n *node, v T, err error) // takes one answer; the calls come one after the other
	decided func() bool                   // reports whether further answers change nothing
	end     func()                        // called once at the end, on any goroutine; it must not wait
	late    func(n *node, err error)      // called for each answer that comes after the end; may be nil
	patient bool                          // also unresponsive nodes are waited for

	timer *time.Timer
	mu    sync.Mutex
	open  nodes // the nodes whose answers were not taken; it stays as it is after the end
	ended bool
}

// start begins the step on the nodes in targets. It calls the function call for each node. This
// function must not wait, and must pass the node's answer to onAnswer once, on any goroutine.
//
// The step ends when it is decided, when all nodes have answered, or when its time is over. It also
// ends when all open nodes are unresponsive and the other nodes are a quorum. It may end before
// start returns.
func (g *gather[T]) start(targets nodes, call func(n *node, onAnswer func(T, error))) {
	g.open = targets
	for n := range g.quorum.eachNode(targets) {
		n.underWay.Add(1)
	}
	g.quorum.active.Add(1)
	g.mu.Lock() // the step's time may be over before g.timer is set
	g.timer = time.AfterFunc(g.quorum.patience, func() { g.advance(true, nil) })
	g.mu.Unlock()
	for n := range g.quorum.eachNode(targets) {
		call(n, func(v T, err error) {
			n.recordEnd(err)
			if !g.advance(false, func() {
				g.open = g.open.minus(n.index)
				g.take(n, v, err)
			}) && g.late != nil {
				g.late(n, err)
			}
		})
	}
	g.advance(false, nil) // a step on no nodes gets no answer
}

// advance does the given change, and ends the step if it is decided. It returns false if the step
// has ended before. The parameter late is true when the step's time is over.
func (g *gather[T]) advance(late bool, change func()) bool {
	g.mu.Lock()
	if g.ended {
		g.mu.Unlock()
		return false
	}
	if change != nil {
		change()
	}
	g.ended = g.open == 0 || late || g.decided() || !g.patient && g.isHopeless()
	ended := g.ended
	g.mu.Unlock()
	if !ended {
		return true
	}
	for n := range g.quorum.eachNode(g.open) {
		if late {
			n.failed.Store(fewFailures)
		}
	}
	g.timer.Stop()
	g.quorum.active.Add(-1)
	g.end()
	return true
}

// isHopeless reports whether the responsive nodes are a quorum and all of them have answered, so
// the step waits only for unresponsive nodes.
func (g *gather[T]) isHopeless() bool {
	responsive := 0
	for i, n := range g.quorum.nodes {
		if n.failed.Load() < fewFailures {
			responsive++
			if g.open.has(i) {
				return false
			}
		}
	}
	return responsive >= g.quorum.need
}

// gatherAll does a step on the nodes in targets, and waits for its end. It returns the nodes whose
// answers were not taken.
func gatherAll[T any](q *quorum, targets nodes, call func(n *node, onAnswer func(T, error)), decided func() bool, take func(n *node, v T, err error)) (open nodes) {
	ended := make(chan struct{})
	g := &gather[T]{quorum: q, take: take, decided: decided, end: func() { close(ended) }}
	g.start(targets, call)
	<-ended
	return g.open
}

// async turns the function step, which waits for a node's answer, into a function that does not
// wait.
func async[T any](step func(n *node) (T, error)) func(n *node, onAnswer func(T, error)) {
	return func(n *node, onAnswer func(T, error)) { n.links.Pool.Do(func() { onAnswer(step(n)) }) }
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

// recordEnd records that a call at the node has ended, with the error err or with success. A node
// that refuses counts as one that fails: no step waits for it.
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
