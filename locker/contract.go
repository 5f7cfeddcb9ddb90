package locker

import "github.com/latchkit/latchkit/locker/store"

// This is the part of the contract between the Engine and its Stores that users see. The rest is in
// package store, for authors of a Store.
type (
	// A Store makes the atomic steps of one kind of lock: see package store.
	Store = store.Store
	// Mode says with whom a lease may be shared.
	Mode = store.Mode
	// Info says who holds a key: see [Engine.Inspect].
	Info = store.Info
	// A Permit is one holder's units of a semaphore: see [Engine.Inspect].
	Permit = store.Permit
	// A Reader is one of the leases that share a key: see [Engine.Inspect].
	Reader = store.Reader
	// A Warning reports a setting of the server that can cause the loss of locks: see [Warner].
	Warning = store.Warning
	// NodeError is the error of one node of a quorum. [ErrQuorum] contains a NodeError for each
	// node; [errors.As] finds the first NodeError.
	NodeError = store.NodeError
	// Node is the state of one node of a quorum: see [Engine.Nodes].
	Node = store.Node
	// NodeState says that a node votes, or why it does not vote.
	NodeState = store.NodeState
)

const (
	// Exclusive admits one holder. Exclusive is the zero value.
	Exclusive = store.Exclusive
	// Shared admits many Shared holders at once, and no Exclusive holder. Lockers without readers
	// return [ErrUnsupported].
	Shared = store.Shared

	// NodeUnknown: the node was not asked yet.
	NodeUnknown = store.NodeUnknown
	// NodeVotes: the node votes.
	NodeVotes = store.NodeVotes
	// NodeBehind: the set of nodes has changed, and the node has not received the change yet. The
	// node votes when it has received the change.
	NodeBehind = store.NodeBehind
	// NodeJoins: the node may have forgotten leases. The node votes when all leases that it may
	// have forgotten are over.
	NodeJoins = store.NodeJoins
	// NodeForms: fewer than half of the nodes remember their leases. All nodes form the set anew.
	NodeForms = store.NodeForms
	// NodeClock: the node's clock is wrong, or has stepped.
	NodeClock = store.NodeClock
	// NodeReplaced: another server has taken the node's seat.
	NodeReplaced = store.NodeReplaced
	// NodeStranger: the node belongs to another list of nodes.
	NodeStranger = store.NodeStranger
	// NodeTwice: another node of the list is the same server.
	NodeTwice = store.NodeTwice
	// NodeEvicts: the server may evict keys, and with them leases.
	NodeEvicts = store.NodeEvicts
	// NodeUnsupported: the server cannot be a node.
	NodeUnsupported = store.NodeUnsupported
	// NodeUnreachable: the node does not answer.
	NodeUnreachable = store.NodeUnreachable
)
