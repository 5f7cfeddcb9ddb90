package locker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// quorum is a Store of several independent servers, of which more than half must agree: Redlock, with a fence that needs no
// clock, and without the nodes that may have forgotten what they granted.
//
// Each step goes to all nodes at once, and is answered when enough of them have answered alike. The rest comes later, and is
// finished here: votes that nobody counted are given back, releases that a node did not hear are repeated until it has.
// Only what the quorum could not decide is the Engine's to repeat.
type quorum struct {
	nodes    []*node
	need     int // nodes that must agree
	readers  bool
	skew     time.Duration // between the nodes' clocks
	patience time.Duration // with a node that does not answer
	longest  atomic.Int64  // the longest TTL in use, in ns: ours, or what nodes have told of others'
	drift    func(ttl time.Duration) time.Duration

	clocks  *clocks
	ballots ballots
	calls   callers
	timers  timers
	active  atomic.Int32 // steps that somebody waits for

	background context.Context
	cut        context.CancelFunc
	closing    chan struct{}
	settled    sync.Once

	mu sync.Mutex // so that no two nodes become members as the same server
}

var _ interface {
	Store
	Inspector
	Breaker
	Fencer
	Examiner
	settler
} = (*quorum)(nil)

func newQuorum(cs []Client, cfg config) *quorum {
	q := &quorum{
		need: len(cs)/2 + 1, skew: cfg.maxSkew, patience: cfg.nodeTimeout,
		drift: cfg.drift, clocks: newClocks(len(cs)), closing: make(chan struct{}),
	}
	q.longest.Store(int64(cfg.maxTTL))
	q.background, q.cut = context.WithCancel(context.Background())
	for i, c := range cs {
		q.nodes = append(q.nodes, newNode(c, i, q))
	}
	return q
}

// all is every node.
func (q *quorum) all() nodes { return 1<<len(q.nodes) - 1 }

// each is the nodes of a set.
func (q *quorum) each(s nodes) func(yield func(*node) bool) {
	return func(yield func(*node) bool) {
		for i, n := range q.nodes {
			if s.has(i) && !yield(n) {
				return
			}
		}
	}
}

// lasting is ctx for calls that go on when the caller has gone: its values, and a time that is far enough for any server
// that answers at all.
func lasting(ctx context.Context) context.Context {
	return until{context.WithoutCancel(ctx), time.Now().Add(callTimeout)}
}

// settle waits for what is still under way, and for the releases that nodes have not confirmed, at most until ctx ends.
func (q *quorum) settle(ctx context.Context) (err error) {
	q.settled.Do(func() {
		close(q.closing)
		for _, n := range q.nodes {
			if stopped := n.cleaner.stop(ctx); err == nil {
				err = stopped
			}
		}
		q.cut()
		if stopped := q.calls.stop(ctx); err == nil {
			err = stopped
		}
	})
	return err
}
