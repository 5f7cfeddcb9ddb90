package quorum

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker/store"
)

// quorum is a Store of several independent servers, of which more than half must agree: Redlock,
// with a fence that needs no clock, and without the nodes that may have forgotten what they
// granted.
//
// Each step goes to all nodes at once, and is answered when enough of them have answered alike. The
// rest comes later, and is finished here: votes that nobody counted are given back, releases that a
// node did not hear are repeated until it has. Only what the quorum could not decide is the
// Engine's to repeat.
type quorum struct {
	nodes    []*node
	need     int // nodes that must agree
	readers  bool
	skew     time.Duration // between the nodes' clocks
	patience time.Duration // with a node that does not answer
	longest  time.Duration // TTL that this process may ask for
	slotted  bool          // one of the nodes is a Redis Cluster, so each slot has a roster of its own
	whole    *roster       // if not
	slots    sync.Map      // otherwise: *roster by slot
	report   func(store.Warning)

	clocks  *clocks
	ballots ballots
	calls   calls.Pool
	timers  calls.Timers
	active  atomic.Int32 // steps that somebody waits for

	background context.Context
	cut        context.CancelFunc
	closing    chan struct{}
	settled    sync.Once
}

var _ interface {
	store.Store
	store.Inspector
	store.Revoker
	store.Fencer
	store.ServerChecker
	store.Closer
	store.Membership
	store.Explainer
} = (*quorum)(nil)

// Settings are what a Locker on a quorum is told.
type Settings struct {
	MaxSkew     time.Duration // between the nodes' clocks
	MaxTTL      time.Duration // the longest TTL of a lease
	NodeTimeout time.Duration // how long a step waits for a node
}

// New is the Store of exclusive locks, and a Notifier too when all clients can subscribe.
func New(cs []redisstore.Client, cfg Settings) store.Store { return newQuorum(cs, cfg).withEars(cs) }

// NewReadWrite is New, with readers.
func NewReadWrite(cs []redisstore.Client, cfg Settings) store.Store {
	return newQuorum(cs, cfg).withReaders(cs)
}

func newQuorum(cs []redisstore.Client, cfg Settings) *quorum {
	q := &quorum{
		need: len(cs)/2 + 1, skew: cfg.MaxSkew, patience: cfg.NodeTimeout, longest: cfg.MaxTTL,
		clocks: newClocks(len(cs)), closing: make(chan struct{}),
	}
	q.background, q.cut = context.WithCancel(context.Background())
	for i, c := range cs {
		n := newNode(c, i, q)
		q.nodes = append(q.nodes, n)
		q.slotted = q.slotted || n.cluster != nil
	}
	q.whole = newRoster(q, "")
	return q
}

// life is how long a node keeps a lease of a TTL. Between the vote and the moment when somebody
// else asks for the key, the node's clock may wander from one end of what is allowed to the other,
// and nobody notices.
func (q *quorum) life(ttl time.Duration) int64 { return redisstore.Millis(ttl + 2*q.skew) }

// left is what the holder of a lease counts on when a node keeps the lease for pttl. When the
// holder's time is over, it is what the node's waiters still have to wait for.
func (q *quorum) left(pttl time.Duration) time.Duration {
	if held := pttl - 2*q.skew; held > 0 {
		return held
	}
	return pttl
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

// lasting is ctx for calls that go on when the caller has gone: its values, and a time that is far
// enough for any server that answers at all.
func lasting(ctx context.Context) context.Context {
	return calls.Until(context.WithoutCancel(ctx), time.Now().Add(calls.Timeout))
}

// Close waits for what is still under way, and for the releases that nodes have not confirmed, at
// most until ctx ends.
func (q *quorum) Close(ctx context.Context) (err error) {
	q.settled.Do(func() {
		close(q.closing)
		q.whole.end()
		q.slots.Range(func(_, r any) bool { r.(*roster).end(); return true })
		for _, n := range q.nodes {
			if stopped := n.cleaner.Stop(ctx); err == nil {
				err = stopped
			}
		}
		q.cut()
		if stopped := q.calls.Stop(ctx); err == nil {
			err = stopped
		}
	})
	return err
}
