package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// backgroundContext is the context of calls for which no caller waits.
var backgroundContext = context.Background()

// quorumError is ErrQuorum with the errors of the nodes.
type quorumError struct {
	summary    string // "1 of 3 nodes answered, 2 must agree"
	nodes      []error
	retryAfter time.Duration // time until enough nodes are expected to vote; 0: unknown
}

// newError returns ErrQuorum with a summary and the errors of the nodes that have failed. The
// parameter errs has an error, or nil, for each node.
func (q *quorum) newError(summary string, errs []error) error {
	e := &quorumError{summary: summary}
	var lefts []time.Duration
	for i, err := range errs {
		if err == nil {
			lefts = append(lefts, 0) // the node votes now
			continue
		}
		if no, ok := errors.AsType[*notVoting](err); ok && no.left > 0 {
			lefts = append(lefts, no.left)
		}
		e.nodes = append(e.nodes, q.nodes[i].error(err))
	}
	if slices.Sort(lefts); len(lefts) >= q.need {
		e.retryAfter = lefts[q.need-1]
	}
	return e
}

// errTooFew returns ErrQuorum for a step that only n nodes have done. The parameter predicate
// describes what these nodes did.
func (q *quorum) errTooFew(predicate string, n int, errs []error) error {
	return q.newError(fmt.Sprintf("%d of %d nodes %s, %d must agree", n, len(q.nodes), predicate, q.need), errs)
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

// notVoting is the reason why a node does not vote, inside a Refusal.
type notVoting struct {
	state store.NodeState
	text  string
	left  time.Duration // until the node votes; 0: unknown
}

func (e *notVoting) Error() string { return e.text }

// Is reports that a list with one server twice is not supported.
func (e *notVoting) Is(target error) bool {
	return target == store.ErrUnsupported && e.state == store.NodeTwice
}

// votesNot returns the Refusal of a node that does not vote.
func votesNot(state store.NodeState, format string, args ...any) error {
	return &store.Refusal{Temporary: true, Err: &notVoting{state: state, text: fmt.Sprintf(format, args...)}}
}

var (
	errSilent   = errors.New("the node did not answer in time")
	errLags     = &store.Refusal{Temporary: true, Err: errors.New("too many earlier calls to the node are unanswered, so this call was not sent")}
	errUnderWay = &store.Refusal{Temporary: true, Err: errors.New("an earlier call for the same lease is still under way")}
	errGone     = &store.Refusal{Temporary: true, Err: errors.New("the node may have forgotten leases, so it renews none")}
)

// errWaits returns the refusal of a node that votes after left. A left of 0 means that the wait has
// not begun.
func (q *quorum) errWaits(left time.Duration) error {
	return q.waiting(store.NodeJoins, "the node may have forgotten leases, because it is new or was restarted, emptied or replaced", left)
}

// errStepped returns the refusal of a node whose clock was wrong. Its wait has not begun.
func (q *quorum) errStepped() error {
	return q.waiting(store.NodeClock, "the node's clock was wrong, so the node may have dropped leases too early; let the time service slew the clock instead of stepping it", 0)
}

func (q *quorum) waiting(state store.NodeState, text string, left time.Duration) error {
	if left <= 0 {
		left = q.quarantine()
		text += "; its wait begins when a process asks for a lock and the node's clock agrees with the others"
	}
	text = fmt.Sprintf("%s; it does not vote for another %v (EnrollRedlock is for servers of which none was ever used)", text, left.Round(time.Second/10))
	return &store.Refusal{Temporary: true, Err: &notVoting{state, text, left}}
}

// errClockOff returns the refusal of node i, whose clock differs from the others.
func (q *quorum) errClockOff(i int) error {
	_, off := q.clocks.offset(i)
	return votesNot(store.NodeClock, "the node's clock differs by %v from the clocks of the other nodes, so its vote does not count; correct the clock, or allow the difference with WithMaxSkew", off.Round(time.Millisecond))
}

func errTwice(other int) error {
	return votesNot(store.NodeTwice, "the node is the same server as node %d, and a server has one vote; give the address of each server once", other)
}

var errEvicts = votesNot(store.NodeEvicts, "the node may evict keys, which would delete leases, so it does not vote; set its maxmemory-policy to noeviction")

// errOther returns the refusal of a node whose marker has the given other settings.
func (q *quorum) errOther(settings string) error {
	count, ttl, _ := strings.Cut(settings, "/")
	return votesNot(store.NodeStranger, "the node was used with %s nodes and a WithMaxTTL of %s ms, and this process has %d nodes and %d ms; give all processes the same; to change WithMaxTTL, run latchctl enroll --max-ttl; to change the number of nodes, stop all processes for the longest lease and delete the key %s of each node",
		count, ttl, len(q.nodes), q.longest.Milliseconds(), redisstore.NodeKey)
}

// isRefusal reports whether err contains a Refusal.
func isRefusal(err error) bool {
	_, ok := errors.AsType[*store.Refusal](err)
	return ok
}
