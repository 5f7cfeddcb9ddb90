package quorum

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// quorumError is ErrQuorum with the errors of the nodes.
type quorumError struct {
	summary    string // "1 of 3 nodes answered, 2 must agree"
	nodes      []error
	retryAfter time.Duration // time until enough nodes are expected to vote; 0: unknown
}

func (e *quorumError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v (%s)", store.ErrQuorum, e.summary)
	for i, err := range e.nodes {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		b.WriteString(err.Error())
	}
	return b.String()
}

// Unwrap is for errors.Is and errors.As.
func (e *quorumError) Unwrap() []error { return append([]error{store.ErrQuorum}, e.nodes...) }

// RetryAfter is the time after which another try may succeed; 0 when the time is unknown.
func (e *quorumError) RetryAfter() time.Duration { return e.retryAfter }

// errTooFew returns ErrQuorum for a step that only n nodes have done, where n is less than a
// quorum. The error's text contains the parameter predicate, which describes what these n nodes
// did. The parameter nodes has the errors of the other nodes.
func (q *quorum) errTooFew(predicate string, n int, nodes []error) error {
	return &quorumError{summary: fmt.Sprintf("%d of %d nodes %s, %d must agree", n, len(q.nodes), predicate, q.need), nodes: nodes}
}

var (
	errSilent   = errors.New("the node did not answer in time")
	errLags     = &store.Refusal{Temporary: true, Err: errors.New("too many earlier calls to the node are unanswered, so this call was not sent")}
	errUnderWay = &store.Refusal{Temporary: true, Err: errors.New("an earlier call for the same lease is still under way")}
)

// isRefusal reports whether err contains a Refusal.
func isRefusal(err error) bool {
	_, ok := errors.AsType[*store.Refusal](err)
	return ok
}

// errClockOff returns the refusal of a node whose clock differs by off from the clocks of the other
// nodes.
func errClockOff(off time.Duration) error {
	return &store.Refusal{Temporary: true, Err: fmt.Errorf("the node's clock differs by %v from the clocks of the other nodes, so its vote does not count; correct the clock, or allow the difference with WithMaxSkew", off.Round(time.Millisecond))}
}

// Reasons why a node does not vote.
var (
	errUnknown      = errors.New("it is not known yet whether the node may vote")
	errMayForget    = errors.New("the node may have forgotten leases")
	errBehindSet    = errors.New("the node does not know the latest change of its set yet")
	errSeatOpen     = errors.New("it is not known which seat of the set is the node's, because the set has no node of this name and other nodes do not answer; start or replace the nodes that do not answer, or give all processes the same names of the nodes")
	errReplaced     = errors.New("another server has taken the node's seat in the set; call ReplaceNode to bring the node back")
	errClockStepped = errors.New("the node's clock has jumped, so the node may have dropped leases too early; it votes again when all leases have ended; let the time service slew the clock instead of stepping it")
	errForms        = errors.New("fewer than half of the nodes are known to remember their leases; all nodes must answer to form a new set; start the nodes that do not answer")
	errOtherVotes   = errors.New("the set of nodes has just changed, and the node has voted under another list of servers than the other nodes")
	errEvicts       = errors.New("the node may evict keys, which would delete leases, so it does not vote; set its maxmemory-policy to noeviction")
)

// errJoins returns the reason for a node that may have forgotten leases and does not vote for the
// time remaining.
func errJoins(remaining time.Duration) error {
	return fmt.Errorf("the node may have forgotten leases, because it is new or was restarted, emptied or replaced; it does not vote for another %v (if none of the nodes was ever used, declare that with EnrollRedlock)", max(remaining, 0).Round(time.Second/10))
}
