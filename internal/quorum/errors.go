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

var (
	errSilent = errors.New("it has not answered in time")
	errBehind = &store.Refusal{Temporary: true, Err: errors.New("too many earlier calls are unanswered, so it was not asked")}
	errOwnWay = &store.Refusal{Temporary: true, Err: errors.New("an earlier call for the same lease is still under way")}
)

func isRefusal(err error) bool {
	_, ok := errtype.As[*store.Refusal](err)
	return ok
}
