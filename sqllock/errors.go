package sqllock

import (
	"errors"
	"fmt"
	"strings"

	"github.com/latchkit/latchkit/internal/fenced"
)

// Sentinels for [errors.Is]. All sentinels except ErrIdle and ErrRetries are wrapped in an
// [*Error].
var (
	// ErrStaleFence: a newer holder has claimed the resource, so this holder is too late. Nothing
	// was changed.
	ErrStaleFence = fenced.ErrStale
	// ErrFenceRegressed: the database has a larger fence than the lease that was just granted, so
	// the lock server has lost data. Nothing was changed. [Handle.Repair] makes the next fence
	// large enough.
	ErrFenceRegressed = errors.New("the lock server has lost data: it grants smaller fences than the database has; call sqllock.DB.Repair")
	// ErrCommitUnknown: COMMIT got no answer, and the ledger could not be read. Call
	// [Handle.Resolve] with Error.Op before you repeat the work.
	ErrCommitUnknown = errors.New("it is unknown whether the transaction was committed; call sqllock.DB.Resolve")
	// ErrTooLate: too little of the lease was left to commit, because the work took too long or
	// renewals failed for too long. Nothing was changed.
	ErrTooLate = fenced.ErrTooLate
	// ErrEnded: the function has ended the transaction. There are three ways to do this: COMMIT or
	// ROLLBACK in the text of a statement, DDL on MySQL, and further statements after an error that
	// ends transactions. Statements before the function's own COMMIT are committed: call
	// [Handle.Resolve] with Error.Op. Later statements ran without a claim; on MySQL they were
	// rolled back. A read-only transaction is not in the ledger, so Resolve returns false for it.
	ErrEnded = errors.New("the function has ended the transaction before its time; leave COMMIT and ROLLBACK to Do, " +
		"or after InTx to the code that began the transaction, and return the errors of statements")
	// ErrIdle: the database server has ended the transaction, because the transaction was idle for
	// longer than its limit. Nothing was changed. The transaction is not retried, because the
	// function may have called other services. MariaDB does not report idleness. So a connection
	// that is lost later than the limit after the claim counts as idle, too.
	ErrIdle = fenced.ErrIdle
	// ErrRetries: the database has refused several attempts, each for a temporary reason. The error
	// also wraps the reason of the last attempt. There is no further attempt, because [WithRetries]
	// does not allow it, or the lease is too short for it. Nothing was changed.
	ErrRetries = errors.New("sqllock: gave up")
)

// kinds are the names of the sentinels in traces.
var kinds = []struct {
	sentinel error
	name     string
}{
	{ErrStaleFence, "stale_fence"},
	{ErrFenceRegressed, "fence_regressed"},
	{ErrCommitUnknown, "commit_unknown"},
	{ErrTooLate, "too_late"},
	{ErrEnded, "ended"},
}

// An Error says why the claim of a resource failed, or why its outcome is unknown. Its reason is
// one of the sentinels, or locker.ErrDone.
type Error struct {
	// Resource is the Rule's Key.
	Resource string
	// Fence is the lease's fence.
	Fence uint64
	// Seen is the fence in the database, with ErrStaleFence and ErrFenceRegressed; otherwise 0.
	Seen uint64
	// Op names the transaction for Resolve, with ErrCommitUnknown and ErrEnded; otherwise "".
	Op string
	// Err is the sentinel. With ErrCommitUnknown, it also says why COMMIT and Resolve got no
	// answer.
	Err error
}

// Error returns, for example, "sqllock: account:42 with fence 7: a newer holder has claimed the
// resource; the database has fence 9".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("sqllock")
	if e.Fence != 0 { // 0: there was no lease
		fmt.Fprintf(&b, ": %s with fence %d", e.Resource, e.Fence)
	}
	if e.Op != "" {
		fmt.Fprintf(&b, ", operation %s", e.Op)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	if e.Seen != 0 {
		fmt.Fprintf(&b, "; the database has fence %d", e.Seen)
	}
	return b.String()
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// ErrorType returns the kind of the error in one word, for traces.
func (e *Error) ErrorType() string {
	for _, k := range kinds {
		if errors.Is(e.Err, k.sentinel) {
			return k.name
		}
	}
	return "_OTHER"
}
