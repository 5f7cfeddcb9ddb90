package sqllock

import (
	"errors"
	"fmt"
	"strings"
)

// Sentinels for [errors.Is]. They arrive inside an [*Error], but for ErrIdle.
var (
	// ErrStaleFence: a newer holder has claimed the resource, so this one came too late. Nothing
	// was changed.
	ErrStaleFence = errors.New("a newer holder has claimed the resource")
	// ErrFenceRegressed: the database has a larger fence than the one that was just granted, so the
	// lock server has lost data. Nothing was changed. [Repair] makes the next fence large enough.
	ErrFenceRegressed = errors.New("the lock server grants fences that are older than the database's: it has lost data; call sqllock.Repair")
	// ErrCommitUnknown: COMMIT got no answer, and the ledger gave none either. Ask [Resolve] with
	// Error.Op before you do the work again.
	ErrCommitUnknown = errors.New("it is unknown whether the transaction was committed; ask sqllock.Resolve")
	// ErrTooLate: the work took so long, or renewals failed for so long, that too little of the
	// lease was left to commit. Nothing was changed.
	ErrTooLate = errors.New("too little of the lease is left to commit")
	// ErrEnded: the function has ended the transaction, by COMMIT or ROLLBACK in the text of a
	// statement, by DDL on MySQL, or because it went on after an error that ends transactions. What
	// the function did before a COMMIT of its own is committed: ask [Resolve] with Error.Op. What
	// it did afterwards had no claim; on MySQL that was rolled back.
	ErrEnded = errors.New("the function has ended the transaction before Do could commit it; " +
		"leave COMMIT and ROLLBACK to Do, and return errors of statements")
	// ErrIdle: the server has ended the transaction because it was idle for longer than its limit.
	// Nothing was changed. It is not done again, because the function may have called other
	// services meanwhile.
	ErrIdle = errors.New("sqllock: the server has ended the transaction, which was idle for too long; " +
		"give a longer WithIdleLimit, or do slow work before the transaction")
)

// kinds are the names of the sentinels in traces.
var kinds = []struct {
	is   error
	name string
}{
	{ErrStaleFence, "stale_fence"},
	{ErrFenceRegressed, "fence_regressed"},
	{ErrCommitUnknown, "commit_unknown"},
	{ErrTooLate, "too_late"},
	{ErrEnded, "ended"},
}

// An Error says what became of the claim of a resource. Its reason is one of the sentinels, or
// locker.ErrDone.
type Error struct {
	// Resource is the Rule's Key.
	Resource string
	// Fence is the lease's.
	Fence uint64
	// Seen is the fence in the database, with ErrStaleFence and ErrFenceRegressed, 0 otherwise.
	Seen uint64
	// Op names the transaction for Resolve, with ErrCommitUnknown and ErrEnded, "" otherwise.
	Op string
	// Err is the sentinel, and with ErrCommitUnknown also why COMMIT and Resolve got no answer.
	Err error
}

// Error returns for example
// "sqllock: account:42 with fence 7: a newer holder has claimed the resource, with fence 9".
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

// A RetriesError is the error of the last of several attempts, each of which the database has
// refused for a passing reason: [WithRetries] allows no more attempts, or the lease is too short
// for another one. Nothing was changed.
type RetriesError struct {
	// Attempts is how many attempts were made, the first one included.
	Attempts int
	// Err is the error of the last attempt.
	Err error
}

// Error returns for example "sqllock: gave up after 4 attempts: …".
func (e *RetriesError) Error() string {
	return fmt.Sprintf("sqllock: gave up after %d attempts: %v", e.Attempts, e.Err)
}

// Unwrap returns the error of the last attempt.
func (e *RetriesError) Unwrap() error { return e.Err }
