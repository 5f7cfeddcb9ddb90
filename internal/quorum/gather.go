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
func (s nodes) first() int        { return bits.TrailingZeros32(uint32(s)) }

// gather does one step on the nodes in targets at once, and returns at its end. It calls the
// function call for each node. This function must not wait, and must pass the node's answer to
// onAnswer once, on any goroutine. The function take gets one answer after the other. The result of
// onAnswer is false for an answer that comes after the end, which is not taken.
//
// The step ends when all nodes have answered, when decided returns true, or when the time within is
// over. It also ends when it waits only for unresponsive nodes and the other nodes are a quorum. If
// decided is nil, only the first and the third of these ends are possible. The result open has the
// nodes whose answers were not taken.
func gather[T any](q *quorum, within time.Duration, targets nodes, call func(n *node, onAnswer func(T, error) bool),
	decided func() bool, take func(i int, v T, err error),
) (open nodes) {
	var mu sync.Mutex
	ended, over := false, make(chan struct{})
	open = targets
	end := func(late bool) { // the caller holds mu
		if ended || !late && open != 0 && (decided == nil || !decided() && !q.isHopeless(open)) {
			return
		}
		ended = true
		for n := range q.eachNode(open) {
			n.behind.Add(1)
			if late {
				n.failed.Store(fewFailures)
			}
		}
		close(over)
	}
	for n := range q.eachNode(targets) {
		n.calls.Enter()
		call(n, func(v T, err error) bool {
			defer n.calls.Leave()
			n.noteEnd(err)
			mu.Lock()
			defer mu.Unlock()
			if ended {
				n.behind.Add(-1)
				return false
			}
			open = open.minus(n.index)
			take(n.index, v, err)
			end(false)
			return true
		})
	}
	mu.Lock()
	end(false) // a step on no nodes, or on unresponsive nodes, gets no answer
	mu.Unlock()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-over:
	case <-timer.C:
		mu.Lock()
		end(true)
		mu.Unlock()
	}
	return open
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

// answer is the answer of one node.
type answer[T any] struct {
	value T
	err   error
}

// askEach asks all nodes at once by the function ask, which may wait, and returns the answers by
// node. A node that has not answered has errSilent.
func askEach[T any](q *quorum, within time.Duration, ask func(n *node) (T, error), decided func([]answer[T]) bool) []answer[T] {
	all := make([]answer[T], len(q.nodes))
	for i := range all {
		all[i].err = errSilent
	}
	var enough func() bool
	if decided != nil {
		enough = func() bool { return decided(all) }
	}
	gather(q, within, q.allNodes(), func(n *node, onAnswer func(T, error) bool) {
		n.links.Pool.Do(func() { onAnswer(ask(n)) })
	}, enough, func(i int, v T, err error) { all[i] = answer[T]{v, err} })
	return all
}

// successes returns the number of answers without an error.
func successes[T any](all []answer[T]) (n int) {
	for _, a := range all {
		if a.err == nil {
			n++
		}
	}
	return n
}

// tooFew returns nil if at least q.need of the answers have no error. Otherwise it returns ErrQuorum
// with the errors. The parameter predicate describes what the other nodes did.
func tooFew[T any](q *quorum, predicate string, all []answer[T]) error {
	n := successes(all)
	if n >= q.need {
		return nil
	}
	var errs []error
	for i, a := range all {
		if a.err != nil {
			errs = append(errs, q.nodes[i].error(a.err))
		}
	}
	return q.errTooFew(predicate, n, errs)
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
