package quorum

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker/store"
)

// quorumError is ErrQuorum with what the nodes said.
type quorumError struct {
	what  string // "1 of 3 nodes granted it, 2 must"
	nodes []error
	after time.Duration // when enough nodes are expected to vote; 0: unknown
}

func (e *quorumError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v (%s)", store.ErrQuorum, e.what)
	for i, err := range e.nodes {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		b.WriteString(err.Error())
	}
	return b.String()
}

// Unwrap is for errors.Is and errors.As.
func (e *quorumError) Unwrap() []error { return append([]error{store.ErrQuorum}, e.nodes...) }

// RetryAfter is when another try may succeed; 0: that is not known.
func (e *quorumError) RetryAfter() time.Duration { return e.after }

// short is ErrQuorum for a step that n nodes have done, which are too few.
func (q *quorum) short(done string, n int, nodes []error) error {
	return &quorumError{what: fmt.Sprintf("%d of %d nodes %s, %d must agree", n, len(q.nodes), done, q.need), nodes: nodes}
}

var (
	errSilent = errors.New("it has not answered in time")
	errBehind = &store.Refusal{Temporary: true, Err: errors.New("too many earlier calls are unanswered, so it was not asked")}
	errOwnWay = &store.Refusal{Temporary: true, Err: errors.New("an earlier call for the same lease is still under way")}
)

func isRefusal(err error) bool {
	_, ok := errtype.As[*store.Refusal](err)
	return ok
}

func errOff(by time.Duration) error {
	return &store.Refusal{Temporary: true, Err: fmt.Errorf("its clock is %v away from the others', so its vote does not count; set it right, or allow it with WithMaxSkew", by.Round(time.Millisecond))}
}
