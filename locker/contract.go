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
	// A Warning reports a setting of the server that can cause the loss of locks: see [Warner].
	Warning = store.Warning
	// NodeError is the error of one node of a quorum. [ErrQuorum] contains a NodeError for each
	// node; [errors.As] finds the first NodeError.
	NodeError = store.NodeError
)

const (
	// Exclusive admits one holder. Exclusive is the zero value.
	Exclusive = store.Exclusive
	// Shared admits many Shared holders at once, and no Exclusive holder. Lockers without readers
	// return [ErrUnsupported].
	Shared = store.Shared
)
