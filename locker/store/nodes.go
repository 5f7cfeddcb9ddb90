package store

import (
	"context"
	"time"
)

// NodeState is how a node of a quorum stands to its set.
type NodeState string

const (
	// NodeUnknown: the node was not asked yet.
	NodeUnknown NodeState = "unknown"
	// NodeVotes: the node votes.
	NodeVotes NodeState = "votes"
	// NodeBehind: the node learns of a change of its set, and votes after that.
	NodeBehind NodeState = "behind"
	// NodeJoins: the node may have forgotten leases, and votes when all of them are over.
	NodeJoins NodeState = "joins"
	// NodeForms: fewer than half of the nodes remember their leases, and all of them become a set
	// anew.
	NodeForms NodeState = "forms"
	// NodeClock: the node's clock is wrong, or has stepped.
	NodeClock NodeState = "clock"
	// NodeReplaced: another server has taken the node's seat.
	NodeReplaced NodeState = "replaced"
	// NodeStranger: the node belongs to another list of nodes.
	NodeStranger NodeState = "stranger"
	// NodeTwice: another node of the list is the same server.
	NodeTwice NodeState = "twice"
	// NodeEvicts: the server may evict keys, and with them leases.
	NodeEvicts NodeState = "evicts"
	// NodeUnsupported: the server cannot be a node.
	NodeUnsupported NodeState = "unsupported"
	// NodeUnreachable: the node does not answer.
	NodeUnreachable NodeState = "unreachable"
)

// Node is how one node of a quorum stands to its set, as this process sees it.
type Node struct {
	Index  int    // in the list of clients, from 0
	Addr   string // where its client leads to, "" when that is not known
	State  NodeState
	Reason string        // why the node does not vote, and what to do; "" when it votes
	Left   time.Duration // until the node votes if nothing else happens; 0 when it votes, or when that is not known
	Offset time.Duration // of its clock to the median of all nodes' clocks
}

// A Membership is a Store of several nodes, of which some may have no vote for a while.
type Membership interface {
	// Nodes asks all nodes, and does what brings back those that do not vote.
	Nodes(ctx context.Context) ([]Node, error)
	// Watch makes the Store report when a node stops to vote and when it votes again. It is called
	// once, before all else.
	Watch(report func(Warning))
}

// An Explainer is a Store that knows what its last unanswered calls were about, for an acquire
// whose wait ends before an answer comes. It answers nil when it knows of nothing.
type Explainer interface {
	Explain() error
}
