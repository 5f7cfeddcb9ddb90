// Package quorum is the Store of locks on several independent servers. It is Redlock with fences.
// Each node keeps itself out while it may have forgotten leases.
//
//	gather    one step on several nodes at once, whose answers are taken as they come
//	round     one attempt to collect votes; a request is its call, a poll is one node's answer
//	tally     the result of a round, derived from the answers of the nodes
//	ballot    for one token: at which nodes it has a vote, or may have one
//	node      one node: its scripts, and its clock compared with the others
//	standing  whether a node votes, as far as this process knows
package quorum

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// quorum is a Store of several independent servers, of which more than half must agree.
//
// Each step is sent to all nodes at once, and ends when enough nodes have given the same answer.
// Votes that do not count are given back in the background, and a decided release is repeated at
// each node until the node confirms it. The Engine repeats the steps that stayed undecided.
type quorum struct {
	calls.Steps // of the quorum as a Store, without Begin

	nodes    []*node
	need     int           // number of nodes that must agree
	skew     time.Duration // the allowed skew between the nodes' clocks
	patience time.Duration // how long a step waits for a node's answer
	longest  time.Duration // longest TTL of a lease
	settings string        // the number of nodes and longest, as a marker has them
	asks     atomic.Bool   // this process has asked for votes, or was told the longest TTL
	report   func(store.Warning)

	clocks  *clocks
	ballots ballots
	steps   calls.Tasks // the acquires and releases under way
	pool    calls.Pool  // the goroutines of renewals; those of a node only call the node
}

// Capabilities returns what a quorum can do besides its steps. It has no queue and sends no
// messages, so waiters poll.
func (q *quorum) Capabilities() store.Capabilities {
	return store.Capabilities{
		Inspect: q.Inspect, Keys: q.Keys, Queue: q.Queue, Revoke: q.Revoke, RaiseFence: q.RaiseFence,
		Nodes: q.Nodes, Watch: q.Watch,
	}
}

// Settings are the options of a Locker that a quorum needs.
type Settings struct {
	MaxSkew     time.Duration // the allowed skew between the nodes' clocks
	MaxTTL      time.Duration // the longest TTL of a lease
	MaxTTLGiven bool          // MaxTTL is no default
	NodeTimeout time.Duration // how long a step waits for a node's answer
	Warn        func(error)   // called with the refusal that ends an undo; may be nil
}

// New returns the Store of exclusive locks on the servers of the clients cs. It sends nothing.
func New(cs []redisstore.Client, cfg Settings) store.Store { return newQuorum(cs, cfg) }

func newQuorum(cs []redisstore.Client, cfg Settings) *quorum {
	millis := redisstore.Millis(cfg.MaxTTL) // markers have no fractions
	q := &quorum{
		need: len(cs)/2 + 1, skew: cfg.MaxSkew, patience: cfg.NodeTimeout, longest: time.Duration(millis) * time.Millisecond,
		settings: fmt.Sprintf("%d/%d", len(cs), millis), clocks: newClocks(len(cs)),
	}
	q.Steps = calls.Wrap(q, q.close, &q.pool, cfg.Warn)
	q.asks.Store(cfg.MaxTTLGiven)
	for i, c := range cs {
		q.nodes = append(q.nodes, newNode(c, i, q))
	}
	return q
}

// quarantine returns how long a node that may have forgotten leases must not vote. All leases that
// it may have forgotten end within this time, even if clocks run too fast or too slow by 1 %. And
// all fences that it has given are in the past then: its counter may have been ahead of the clock by
// several times the skew.
func (q *quorum) quarantine() time.Duration {
	return max(q.longest+q.longest/50+2*time.Millisecond, 4*q.skew) + 100*time.Millisecond
}

// life returns how long a node keeps a lease of the TTL ttl, in milliseconds. Between the vote and
// the next contender's request, the node's clock may drift from one end of the allowed skew to the
// other. No client notices such a drift, so the node keeps the lease longer by twice the skew.
func (q *quorum) life(ttl time.Duration) int64 { return redisstore.Millis(ttl + 2*q.skew) }

// holderLife returns how long a lease still lasts for its holder, if the node keeps it for pttl
// from now on. If the lease is over for the holder, holderLife returns pttl.
func (q *quorum) holderLife(pttl time.Duration) time.Duration {
	if held := pttl - 2*q.skew; held > 0 {
		return held
	}
	return pttl
}

// allNodes returns the set of all nodes.
func (q *quorum) allNodes() nodes { return 1<<len(q.nodes) - 1 }

// eachNode yields the nodes of the set s.
func (q *quorum) eachNode(s nodes) func(yield func(*node) bool) {
	return func(yield func(*node) bool) {
		for i, n := range q.nodes {
			if s.has(i) && !yield(n) {
				return
			}
		}
	}
}

// Begin begins a step. A step at a quorum ends soon by itself, so it needs no time-out, and an undo is
// a release like any other.
func (q *quorum) Begin(ctx context.Context, step calls.Step, c store.Claim, onAnswer func(store.Grant, error)) *calls.Future {
	f, ok := q.pool.Future(onAnswer)
	if !ok {
		return f
	}
	do := q.release
	if step == calls.Acquire {
		do = q.acquire
	}
	q.steps.Enter()
	do(ctx, c, func(g store.Grant, err error) {
		f.Deliver(g, err)
		q.steps.Leave()
	})
	return f
}

// Acquire makes the step that Begin begins.
func (q *quorum) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	return calls.Await(q.Begin(ctx, calls.Acquire, c, nil))
}

// Release makes the step that Begin begins.
func (q *quorum) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	return calls.Await(q.Begin(ctx, calls.Release, c, nil))
}

// close waits for the steps that are under way, and for the releases that nodes have not confirmed,
// at most until ctx ends. The nodes come last, because the steps end at the nodes: a late vote
// needs a release there.
func (q *quorum) close(ctx context.Context) error {
	err := cmp.Or(q.steps.Wait(ctx), q.pool.Stop(ctx))
	ended := make(chan error, len(q.nodes))
	for _, n := range q.nodes {
		go func() { ended <- n.close(ctx) }()
	}
	for range q.nodes {
		err = cmp.Or(err, <-ended)
	}
	return err
}

//go:embed lua/*.lua lua/digests
var luaFiles embed.FS

var (
	voteScript    = redisstore.NewScript(luaFiles, "vote", "votes")
	confirmScript = redisstore.NewScript(luaFiles, "confirm", "votes")
	renewScript   = redisstore.NewScript(luaFiles, "renew", "votes")
	releaseScript = redisstore.NewScript(luaFiles, "release")

	lookScript = redisstore.NewScript(luaFiles, "look")
	markScript = redisstore.NewScript(luaFiles, "mark")
)

// ScriptTexts maps the name of each script to the text that a node gets. Tests and benchmarks use
// the texts without a Store.
var ScriptTexts = map[string]string{
	"vote": voteScript.Text, "confirm": confirmScript.Text, "renew": renewScript.Text, "release": releaseScript.Text,
	"look": lookScript.Text, "mark": markScript.Text,
}
