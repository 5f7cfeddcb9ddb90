package store

import (
	"context"
	"time"
)

// NodeState names whether a node of a quorum votes, or the reason why it does not.
type NodeState string

const (
	// NodeUnknown: the node was not asked yet.
	NodeUnknown NodeState = "unknown"
	// NodeVotes: the node votes.
	NodeVotes NodeState = "votes"
	// NodeBehind: the set of nodes has changed, and the node does not know it yet. The node votes
	// as soon as it does.
	NodeBehind NodeState = "behind"
	// NodeJoins: the node may have forgotten leases. It votes when all of them are over.
	NodeJoins NodeState = "joins"
	// NodeForms: fewer than half of the nodes remember their leases. All nodes form the set anew.
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

// Node is the state of one node of a quorum, as this process sees it.
type Node struct {
	Index  int    // in the list of clients, from 0
	Addr   string // the address that its client connects to, "" when it is not known
	State  NodeState
	Reason string        // why the node does not vote, and what to do; "" when it votes
	Left   time.Duration // until the node votes if nothing else happens; 0 when it votes, or when the time is not known
	Offset time.Duration // of its clock to the median of all nodes' clocks
}

// A Membership is a Store of several nodes, some of which may be without a vote for a while.
type Membership interface {
	// Nodes asks all nodes for their state, and works to bring those back that do not vote.
	Nodes(ctx context.Context) ([]Node, error)
	// Watch makes the Store report when a node stops voting and when it votes again. It is called
	// once, before all other methods.
	Watch(report func(Warning))
}

// An Explainer is a Store that knows why its last calls have no answer, for an acquire whose wait
// ends before an answer comes. It returns nil when it knows no reason.
type Explainer interface {
	Explain() error
}
