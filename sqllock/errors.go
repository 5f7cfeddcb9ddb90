package sqllock

import (
	"errors"
	"fmt"
	"strings"
)

// What callers ask of an error of this package, with [errors.Is]. They arrive inside an [*Error].
var (
	// ErrStaleFence: a newer holder has claimed the resource, so this one came too late. Nothing was changed.
	ErrStaleFence = errors.New("a newer holder has claimed the resource")
	// ErrFenceRegressed: the database knows a larger fence than the one that was just granted, so the lock server has lost
	// its memory. Nothing was changed. [Repair] makes the next fence large enough.
	ErrFenceRegressed = errors.New("the lock server grants fences that are older than the database's: it has lost data; call sqllock.Repair")
	// ErrCommitUnknown: nobody has answered whether the transaction was committed. Ask [Resolve] with Error.Op before you do
	// the work again.
	ErrCommitUnknown = errors.New("it is unknown whether the transaction was committed; ask sqllock.Resolve")
	// ErrTooLate: the work took so long, or renewals failed for so long, that too little of the lease was left to commit.
	// Nothing was changed.
	ErrTooLate = errors.New("too little of the lease is left to commit")
)

// kinds are the words of the sentinels for traces.
var kinds = []struct {
	is   error
	name string
}{
	{ErrStaleFence, "stale_fence"},
	{ErrFenceRegressed, "fence_regressed"},
	{ErrCommitUnknown, "commit_unknown"},
	{ErrTooLate, "too_late"},
}

// An Error says what became of the claim of a resource. Its reason is one of the sentinels.
type Error struct {
	// Resource is the Rule's Key.
	Resource string
	// Fence is the lease's.
	Fence uint64
	// Seen is the fence in the database, with ErrStaleFence and ErrFenceRegressed, 0 otherwise.
	Seen uint64
	// Op names the transaction for Resolve, with ErrCommitUnknown, "" otherwise.
	Op string
	// Err is the sentinel, and with ErrCommitUnknown also why COMMIT and Resolve got no answer.
	Err error
}

// Error returns for example "sqllock: account:42 with fence 7: a newer holder has claimed the resource, with fence 9".
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sqllock: %s with fence %d", e.Resource, e.Fence)
	if e.Op != "" {
		fmt.Fprintf(&b, ", operation %s", e.Op)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Seen != 0 {
		fmt.Fprintf(&b, ", with fence %d", e.Seen)
	}
	return b.String()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// ErrorType is the error in one word, for traces.
func (e *Error) ErrorType() string {
	for _, k := range kinds {
		if errors.Is(e.Err, k.is) {
			return k.name
		}
	}
	return "_OTHER"
}
