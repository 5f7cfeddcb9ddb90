package sqllock

import (
	"context"
	"fmt"

	"github.com/latchkit/latchkit/locker"
)

// Do acquires the lock that rule describes, begins a transaction, claims the lease's fence in it,
// calls fn, commits, and releases the lock, in this order. Do takes a connection only when it has
// the lock, so waiters use no connection.
//
// The results mean:
//
//	nil                    the transaction is committed
//	ErrCommitUnknown       COMMIT got no answer; ask Resolve before you do the work again
//	ErrEnded               fn itself has ended the transaction, perhaps by COMMIT; ask Resolve
//	any other error        nothing was changed in the database
//
// The other errors are: errors of the Locker; locker.ErrUnsupported for a lease whose fence is 0;
// ErrStaleFence, ErrFenceRegressed, ErrTooLate and ErrIdle; locker.ErrDone with [WithOperation];
// errors of the database; and errors of fn. An error of fn is returned unchanged, and joined with
// locker.ErrLost if the lease was lost. After several attempts, a [*RetriesError] wraps the error
// of the last attempt. After a loss of the lease, nothing is committed. A loss of the lease after
// the COMMIT is not an error, because the claim in the database refuses older holders.
//
// fn may be called several times, each time in a new transaction; see [WithRetries]. fn's context
// ends with ctx or with the lease. The end of ctx ends the wait and the transaction, but not a
// COMMIT that was sent. [WithAnswerWithin] limits the wait for the answer to a COMMIT. If fn
// panics, the transaction is rolled back, the lock is released, and the panic continues.
//
// Do never waits for a lock that its own caller holds. If ctx holds the key already, Do returns
// locker.ErrUnsupported: use [Within]. A Do inside the function of another Do returns
// locker.ErrUnsupported if the outer transactions use all connections of the pool.
func Do(
	ctx context.Context, l locker.Locker, db Beginner, rule locker.Rule,
	fn func(ctx context.Context, tx *Tx) error, opts ...Option,
) error {
	return DoAll(ctx, l, db, []locker.Rule{rule}, fn, opts...)
}

// DoAll is [Do] for several locks, which it acquires as [locker.RunAll] does. The fences are always
// claimed in the order of their keys, so calls never deadlock on their claims.
//
// Some Rules may be Exclusive and others Shared. The resource of a Shared Rule is not claimed, but
// its row is locked against claims until the transaction ends. If all Rules are Shared, the
// transaction is read-only.
func DoAll(
	ctx context.Context, l locker.Locker, db Beginner, rules []locker.Rule,
	fn func(ctx context.Context, tx *Tx) error, opts ...Option,
) error {
	if len(rules) == 0 {
		return errNoRules
	}
	c, err := forDB(db, termsOf(rules), fn, opts)
	if err != nil {
		return err
	}
	return c.run(ctx, l, rules)
}

// Within is [Do] under the leases that ctx already has, such as the lease of a guarded request. It
// acquires no lock. It claims every lease of ctx: the lease of each [locker.Run] around the caller,
// and all leases of a [locker.RunAll]. Without a lease, the error is locker.ErrUnguarded. Released
// leases are ignored. If any other lease of ctx has ended, Within returns an error.
func Within(
	ctx context.Context, db Beginner, fn func(ctx context.Context, tx *Tx) error, opts ...Option,
) error {
	return runWithin(ctx, nil, func(terms []term) (*call, error) { return forDB(db, terms, fn, opts) })
}

// WithinAll is [Within] for the leases of ctx with the given keys only. If ctx lacks one of the
// keys, the error is locker.ErrUnguarded. So WithinAll also asserts that the caller holds the keys.
func WithinAll(
	ctx context.Context, db Beginner, keys []string,
	fn func(ctx context.Context, tx *Tx) error, opts ...Option,
) error {
	if len(keys) == 0 {
		return errNoKeys
	}
	return runWithin(ctx, keys, func(terms []term) (*call, error) { return forDB(db, terms, fn, opts) })
}

var (
	errNoRules = fmt.Errorf(
		"%w: sqllock: DoAll without rules has nothing to lock; begin a transaction of your own", locker.ErrInvalidRule)
	errNoKeys = fmt.Errorf(
		"%w: sqllock: WithinAll without keys has nothing to claim; name the keys, or use Within", locker.ErrInvalidRule)
)
