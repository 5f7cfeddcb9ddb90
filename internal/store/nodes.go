package store

import (
	"time"
)

// NodeState shows that a node of a quorum votes, or why the node does not vote.
type NodeState string

const (
	// NodeVotes: the node votes.
	NodeVotes NodeState = "votes"
	// NodeJoins: the node may have forgotten some of its leases. The node votes when all leases
	// that it may have forgotten are over.
	NodeJoins NodeState = "joins"
	// NodeClock: the node's clock is wrong, or was wrong.
	NodeClock NodeState = "clock"
	// NodeStranger: the node was used with another number of nodes, or another longest TTL.
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

// Node is the state of one node of a quorum, or of the only server, as this process sees it.
type Node struct {
	Index  int    // the place in the list of clients, from 0
	Addr   string // the address that the node's client connects to; "" when it is not known
	State  NodeState
	Reason string // why the node does not vote, and what to do; "" when it votes
	// The time until the node votes if nothing else happens; 0 when it votes, or when the time is
	// not known.
	Left   time.Duration
	Offset time.Duration // the difference between the node's clock and the median of all nodes' clocks
	// Why this process' waiters poll, and get no messages from the node; "" while they get them.
	Polls string
}
