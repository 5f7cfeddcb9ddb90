package locker

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// NodeError is what one node of a quorum had to say. [errors.As] finds the first; [ErrQuorum] has all of them inside.
type NodeError struct {
	Node int    // its index in the list of clients, from 0
	Addr string // where its client leads to, "" when that is not known
	Err  error
}

// Error returns for example "node 2 (10.0.0.7:6379): connection refused".
func (e *NodeError) Error() string {
	where := "node " + strconv.Itoa(e.Node)
	if e.Addr != "" {
		where += " (" + e.Addr + ")"
	}
	return where + ": " + e.Err.Error()
}

// Unwrap returns what it said.
func (e *NodeError) Unwrap() error { return e.Err }

// quorumError is ErrQuorum with what the nodes said.
type quorumError struct {
	what  string // "1 of 3 nodes granted it, 2 must"
	nodes []error
}

func (e *quorumError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v (%s)", ErrQuorum, e.what)
	for i, err := range e.nodes {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		b.WriteString(err.Error())
	}
	return b.String()
}

// Unwrap is for errors.Is and errors.As.
func (e *quorumError) Unwrap() []error { return append([]error{ErrQuorum}, e.nodes...) }

var (
	errSilent = errors.New("it has not answered in time")
	errBehind = &Refusal{Temporary: true, Err: errors.New("too many earlier calls are unanswered, so it was not asked")}
	errOwnWay = &Refusal{Temporary: true, Err: errors.New("an earlier call for the same lease is still under way")}
)
