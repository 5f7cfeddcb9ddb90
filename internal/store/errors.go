package store

import (
	"errors"
	"strconv"
)

// Stores return these errors, and users check them with errors.Is.
var (
	// ErrUnavailable: the lock server cannot be reached or cannot answer now. An error that is
	// ErrUnavailable is never also ErrBusy.
	ErrUnavailable = errors.New("the lock server is unavailable")

	// ErrQuorum: too few nodes of a quorum agreed. errors.Is(err, ErrUnavailable) is true as well.
	// The error contains a [NodeError] for each node that failed.
	ErrQuorum error = noQuorum{}

	// ErrUnsupported: this Locker does not support the operation or the Rule.
	ErrUnsupported = errors.New("not supported")

	// ErrInvalidKey: the key cannot be locked. The error's text states what is allowed.
	ErrInvalidKey = errors.New("invalid key")

	// ErrClosed: the Locker was closed.
	ErrClosed = errors.New("the Locker was closed")
)

type noQuorum struct{}

func (noQuorum) Error() string { return "too few nodes agreed" }

func (noQuorum) Is(target error) bool { return target == ErrUnavailable }

// ErrNotReplicated inside an error of Acquire means that the lease was written, but that too few
// replicas know it. The Engine undoes the acquire, and does not repeat it.
var ErrNotReplicated = errors.New("too few replicas have acknowledged the lease")

// ErrMoving inside an error of a Store means that the key's data is moving to another server. The
// same call will succeed when the data has arrived. After ErrMoving, the Engine repeats a first
// acquire for as long as the Rule allows. After other errors, the Engine repeats a first
// acquire for one second.
var ErrMoving = errors.New("the key's data is moving to another server")

// NodeError is the error of one node of a quorum. [ErrQuorum] contains a NodeError for each node
// that failed; [errors.As] finds the first of them.
type NodeError struct {
	Node int    // the node's place in the list of clients, from 0
	Addr string // the address that the node's client connects to; "" when it is not known
	Err  error
}

// Error returns, for example, "node 2 (10.0.0.7:6379): connection refused".
func (e *NodeError) Error() string {
	where := "node " + strconv.Itoa(e.Node)
	if e.Addr != "" {
		where += " (" + e.Addr + ")"
	}
	return where + ": " + e.Err.Error()
}

// Unwrap returns the error that the node returned.
func (e *NodeError) Unwrap() error { return e.Err }
