package locker

import (
	"context"
	"time"
)

// A Locker turns a [Rule] into a [Lease]. Every constructor of this package returns one; it is safe for concurrent use.
type Locker interface {
	// Acquire takes the lock that rule describes, waiting as rule.Wait says. ctx ends the wait, at once, even while a
	// call to the server hangs; it does not end the lease that was granted. The error is an [*Error].
	Acquire(ctx context.Context, rule Rule) (*Lease, error)
}

// NoWait as [Rule.Wait] makes one attempt; a held key is answered with [ErrBusy].
const NoWait time.Duration = -1

// DefaultTTL is a lease's time to live when neither the Rule nor [WithTTL] says otherwise.
const DefaultTTL = 30 * time.Second

// A Rule says what to guard, and how. It is a value: store it, compare it, put it into a table. Times below a
// millisecond are refused where they would be rounded to nothing, otherwise rounded up to whole milliseconds.
type Rule struct {
	_ struct{} // keyed literals only

	// Key is what is locked: 1 to 512 bytes (with the Locker's prefix), not starting with "latchkit:".
	Key string
	// Name stands for the rule in traces and metrics, so it must have few values. Default: the Key up to its first
	// ':', "lock" when there is none.
	Name string
	// Mode is Exclusive by default.
	Mode Mode
	// TTL is how long the server keeps the lock when nobody renews it: after a crash, the next holder waits this long.
	// It is renewed while held. Default: the Locker's, 30 s.
	TTL time.Duration
	// Wait is the longest time to wait for the lock. 0: until ctx is done; NoWait: one attempt. A server that
	// has given no answer yet is asked again for 1 s at most; then it is ErrUnavailable.
	Wait time.Duration
	// AtLeast keeps the key locked this long after the grant even if it is released sooner: it suppresses duplicates
	// of a job that several schedulers start within their clocks' skew. Default: 0, released at once.
	AtLeast time.Duration
	// AtMost ends the lease this long after the grant, with ErrExpired, however alive its holder is. AtMost = TTL:
	// never renewed; AtMost < TTL shortens the lease. Default: 0, no bound.
	AtMost time.Duration
	// Once makes acquires of the key answer ErrDone for this long after [Run]'s function (or [Lease.Complete])
	// succeeded. Only Rules with Once ask for that mark. Default: 0, no mark.
	Once time.Duration
	// Metadata is written into the lease instead of the text of [WithMetadata], at most 256 bytes. [Engine.Inspect] and
	// [Error.HolderMetadata] show it to others, so put no secret into it. A lease with Metadata is never shared with
	// other callers of this process. Default: "", the text of WithMetadata.
	Metadata string
}

// name is the low-cardinality name of the rule.
func (r Rule) name() string {
	if r.Name != "" {
		return r.Name
	}
	for i := range len(r.Key) {
		if r.Key[i] == ':' {
			if i == 0 {
				break
			}
			return r.Key[:i]
		}
	}
	return "lock"
}
