package locker

import "github.com/latchkit/latchkit/locker/store"

// What users see of the contract between the Engine and its Stores. The rest of it is in package store, for those who write a
// Store of their own.
type (
	// A Store makes the atomic steps of one kind of lock: see package store.
	Store = store.Store
	// Mode says with whom a lease may be shared.
	Mode = store.Mode
	// Info says who holds a key: see [Engine.Inspect].
	Info = store.Info
	// A Warning says that the server is set up so that locks can be lost: see [Warner].
	Warning = store.Warning
	// NodeError is what one node of a quorum had to say. [errors.As] finds the first; [ErrQuorum] has all of them inside.
	NodeError = store.NodeError
	// Node is how one node of a quorum stands to its set: see [Engine.Nodes].
	Node = store.Node
	// NodeState is how a node stands to its set, in a word.
	NodeState = store.NodeState
	// A Delegation is what lets a call in another process join a lease: see [Lease.Delegate].
	Delegation = store.Delegation
)

const (
	// Exclusive admits one holder. It is the zero value.
	Exclusive = store.Exclusive
	// Shared admits many holders, and no exclusive one. Lockers without readers answer [ErrUnsupported].
	Shared = store.Shared

	// NodeUnknown: the node was not asked yet.
	NodeUnknown = store.NodeUnknown
	// NodeVotes: the node votes.
	NodeVotes = store.NodeVotes
	// NodeBehind: the node learns of a change of its set, and votes after that.
	NodeBehind = store.NodeBehind
	// NodeJoins: the node may have forgotten leases, and votes when all of them are over.
	NodeJoins = store.NodeJoins
	// NodeForms: fewer than half of the nodes remember their leases, and all of them become a set anew.
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
