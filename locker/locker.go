package locker

import (
	"context"
	"time"
)

// A Locker turns a [Rule] into a [Lease]. Every constructor of this package returns a Locker. A
// Locker is safe for concurrent use.
type Locker interface {
	// Acquire takes the lock that rule describes, and waits as rule.Wait says. When ctx ends,
	// Acquire returns within 250 ms, even while a call to the server hangs. The end of ctx does not
	// end a lease that was granted. The error is an [*Error].
	Acquire(ctx context.Context, rule Rule) (*Lease, error)
}

// NoWait is a value of [Rule.Wait]. With NoWait, Acquire makes one attempt. If the key is held, the
// error is [ErrBusy].
const NoWait time.Duration = -1

// DefaultTTL is a lease's time to live when neither the Rule nor [WithTTL] sets another.
const DefaultTTL = 30 * time.Second

// A Rule says what to guard, and how. A Rule is a value that you can store, compare and put
// into a table. Times are rounded up to whole milliseconds. Times shorter than a millisecond
// are refused. For a job that several processes start, see "A job once" in docs/choosing.md.
type Rule struct {
	_ struct{} // keyed literals only

	// Key names what is locked. With the Locker's prefix it has 1 to 512 bytes. Key must not
	// start with "latchkit:".
	Key string
	// Name identifies the rule in traces and metrics, so it must have few values. Default: the Key
	// up to its first ':', or "lock" when the Key has none.
	Name string
	// Mode is Exclusive by default.
	Mode Mode
	// TTL is how long the server keeps the lock after the last renewal. When a holder crashes,
	// the next holder waits until this time is over. The lease is renewed while it is held.
	// Default: the Locker's TTL, which is 30 s without [WithTTL].
	TTL time.Duration
	// Wait is the longest time to wait for the lock. 0: until ctx is done; NoWait: one attempt. If
	// the server gives no answer at all, Acquire repeats its question for at most 1 s, and then
	// fails with ErrUnavailable.
	Wait time.Duration
	// AtLeast keeps the key locked for this long after the grant, even if the lease is released
	// sooner. It suppresses duplicates of a job that several schedulers start at slightly different
	// times. Default: 0, the release frees the key at once.
	AtLeast time.Duration
	// AtMost ends the lease this long after the grant, with ErrExpired, even if its holder is
	// healthy. With AtMost = TTL the lease is never renewed; AtMost < TTL shortens the lease.
	// Default: 0, no limit.
	AtMost time.Duration
	// Once is for work that must be done only once. When [Run]'s function or [Lease.Complete]
	// succeeds, the server marks the key as done for this long. While the mark exists, acquires by
	// Rules with Once fail with ErrDone. Rules without Once ignore the mark. Default: 0, no mark.
	Once time.Duration
	// Limit is how many units of the key may be held at once, on a Locker of [NewSemaphore].
	// Processes may set different Limits: a lease is granted if all units together then exceed
	// neither its own Limit nor the Limit of any held lease. Default: the Locker's n. At most
	// 2³¹-1.
	Limit int
	// Weight is how many units the lease takes, at most Limit. Default: 1.
	Weight int
	// Metadata is written into the lease instead of the text of [WithMetadata], at most 256 bytes.
	// [Engine.Inspect] and [Error.HolderMetadata] show the Metadata to other callers, so put no
	// secret into it. A lease with Metadata is never shared with other callers of this process.
	// Default: "", the text of WithMetadata.
	Metadata string
}

// name returns the name of the rule for traces and metrics.
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
