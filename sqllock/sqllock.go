package sqllock

import (
	"context"
	"fmt"

	"github.com/latchkit/latchkit/locker"
)

// Do acquires the lock that rule describes, begins a transaction, claims the lease's fence in it,
// calls fn, commits, and releases the lock, in this order. The lock is acquired before a connection
// is, so waiters use no connection.
//
// What the result says:
//
//	nil                    the transaction is committed
//	ErrCommitUnknown       COMMIT got no answer; ask Resolve before you do the work again
//	any other error        nothing was changed in the database
//
// Other errors are the Locker's; locker.ErrUnsupported for a lease whose fence is 0; ErrStaleFence,
// ErrFenceRegressed, ErrTooLate, ErrIdle; locker.ErrDone with [WithOperation]; the database's; and
// fn's, which are returned unchanged, joined with locker.ErrLost when the lease was lost. A
// [*RetriesError] is around the error of the last attempt when there were several. After a loss
// nothing is committed. A lease that is lost after the COMMIT is no error: the claim keeps older
// holders out.
//
// fn may be called several times, each time in a new transaction; see [WithRetries]. fn's context
// ends with ctx or with the lease. ctx ends the wait and the transaction, but not a COMMIT that was
// sent, which [WithAnswerWithin] bounds. If fn panics, the transaction is rolled back, the lock is
// released, and the panic continues.
//
// Do never waits for itself. When ctx holds the key already, Do returns locker.ErrUnsupported: use
// [Within]. The same goes for a Do inside the function of another Do, when the outer transactions
// use all connections of the pool.
func Do(
	ctx context.Context, l locker.Locker, db Beginner, rule locker.Rule,
	fn func(ctx context.Context, tx *Tx) error, opts ...Option,
) error {
	return DoAll(ctx, l, db, []locker.Rule{rule}, fn, opts...)
}

// DoAll is [Do] for several locks, which it acquires as [locker.RunAll] does. The fences are
// claimed in the order of their keys, whatever the order of rules, so two calls never wait for each
// other in a circle.
//
// Rules may be Exclusive and Shared. A Shared resource is not claimed: its row is locked against
// claims until the transaction ends. When all rules are Shared, the transaction only reads.
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

// Within is [Do] under the leases that ctx has already, such as that of a request which an adapter
// has guarded. It acquires no lock. It claims every lease of ctx: that of each [locker.Run] around
// the caller, and all of a [locker.RunAll]. Without a lease the error is locker.ErrUnguarded.
// Leases that were released do not count. Within returns an error when any other of them has ended.
func Within(
	ctx context.Context, db Beginner, fn func(ctx context.Context, tx *Tx) error, opts ...Option,
) error {
	return within(ctx, nil, func(terms []term) (*call, error) { return forDB(db, terms, fn, opts) })
}

// WithinAll is [Within] for the leases of ctx with these keys, and no others. Where ctx lacks one
// of them, the error is locker.ErrUnguarded: WithinAll also asserts that the caller holds the keys.
func WithinAll(
	ctx context.Context, db Beginner, keys []string,
	fn func(ctx context.Context, tx *Tx) error, opts ...Option,
) error {
	if len(keys) == 0 {
		return errNoKeys
	}
	return within(ctx, keys, func(terms []term) (*call, error) { return forDB(db, terms, fn, opts) })
}

var (
	errNoRules = fmt.Errorf(
		"%w: sqllock: DoAll without rules has nothing to lock; begin a transaction of your own", locker.ErrInvalidRule)
	errNoKeys = fmt.Errorf(
		"%w: sqllock: WithinAll without keys has nothing to claim; name the keys, or use Within", locker.ErrInvalidRule)
)
