package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// Do takes the lock that rule describes, begins a transaction, claims the lease's fence in it, calls fn, commits, and gives
// the lock up: in this order. The lock is taken before a connection is, so that callers who wait keep none.
//
// How it ends:
//
//	nil                    the transaction is committed
//	ErrCommitUnknown       nobody has answered; ask Resolve before you do it again
//	any other error        nothing was changed in the database
//
// These are the Locker's errors; locker.ErrUnsupported for a lease whose fence is 0; ErrStaleFence, ErrFenceRegressed,
// ErrTooLate; the database's; and fn's, which come back unchanged, with locker.ErrLost beside them when the lease was lost.
// After a loss nothing is committed. A lease that is lost once the transaction is committed is no error: the claim in it
// keeps older holders out.
//
// fn may be called several times, each time in a new transaction; see [WithRetries]. Its context ends with ctx or with the
// lease. ctx ends the wait and the transaction, but no COMMIT that is under way, which [WithAnswerWithin] bounds. If fn
// panics the transaction is rolled back, the lock given up, and the panic goes on.
func Do(ctx context.Context, l locker.Locker, db Beginner, rule locker.Rule, fn func(ctx context.Context, tx *Tx) error, opts ...Option) error {
	return DoAll(ctx, l, db, []locker.Rule{rule}, fn, opts...)
}

// DoAll is Do for several locks at once, which it takes as [locker.RunAll] does. Their fences are claimed in the order of their
// keys as well, whatever the order of rules, so two calls never wait for each other.
func DoAll(ctx context.Context, l locker.Locker, db Beginner, rules []locker.Rule, fn func(ctx context.Context, tx *Tx) error, opts ...Option) error {
	if len(rules) == 0 {
		return fmt.Errorf("%w: sqllock: DoAll without rules has nothing to lock; begin a transaction of your own", locker.ErrInvalidRule)
	}
	c, err := forDB(db, rules, fn, opts)
	if err != nil {
		return err
	}
	return c.run(ctx, l, rules)
}

// Within is Do under a lease that ctx is already within, such as that of a request which an adapter has guarded: the
// innermost one of ctx. Without one it is locker.ErrUnguarded.
func Within(ctx context.Context, db Beginner, fn func(ctx context.Context, tx *Tx) error, opts ...Option) error {
	lease, ok := locker.FromContext(ctx)
	if !ok {
		return fmt.Errorf("sqllock: Within: %w; call it inside of locker.Run, or use Do", locker.ErrUnguarded)
	}
	c, err := forDB(db, []locker.Rule{{Key: lease.Key(), Mode: lease.Mode()}}, fn, opts)
	if err != nil {
		return err
	}
	err = c.transact(ctx, []*locker.Lease{lease})
	if lost := lease.Context().Err(); err != nil && lost != nil {
		if cause := context.Cause(lease.Context()); !errors.Is(err, cause) {
			return errors.Join(err, cause)
		}
	}
	return err
}

// DoWith is Do for a library that is not database/sql: give it three lines around the library's transaction, and fn gets
// that. The lease, with its fence, is in fn's context.
func DoWith[T Transaction](ctx context.Context, l locker.Locker, db Database[T], rule locker.Rule, fn func(ctx context.Context, tx T) error, opts ...Option) error {
	if db.Begin == nil || fn == nil {
		return errors.New("sqllock: DoWith: the Database's Begin or the function is nil")
	}
	rules := []locker.Rule{rule}
	c, err := newCall(rules, append([]Option{WithDialect(db.Dialect)}, opts...))
	if err != nil {
		return err
	}
	c.begin = func(ctx context.Context, opts *sql.TxOptions, _ time.Duration) (Transaction, error) {
		tx, err := db.Begin(ctx, opts)
		if err != nil {
			return nil, err
		}
		return tx, nil
	}
	c.fn = func(ctx context.Context, a *attempt) error { return fn(ctx, a.tx.(T)) }
	return c.run(ctx, l, rules)
}

// run holds the locks around the transaction.
func (c *call) run(ctx context.Context, l locker.Locker, rules []locker.Rule) error {
	if isNil(l) {
		return errors.New("sqllock: the Locker is nil; make one with locker.NewSingle, and check its error")
	}
	c.locker = l
	committed, outer := false, len(locker.LeasesFromContext(ctx))
	transact := func(ctx context.Context) error {
		err := c.transact(ctx, sorted(locker.LeasesFromContext(ctx), outer))
		committed = err == nil
		return err
	}
	var err error
	if len(rules) == 1 {
		err = locker.Run(ctx, l, rules[0], transact)
	} else {
		err = locker.RunAll(ctx, l, rules, transact)
	}
	if committed { // the transaction is there, whatever became of the locks afterwards
		return nil
	}
	return err
}

// sorted returns leases, but for the outer ones at the end, in the order of their keys.
func sorted(leases []*locker.Lease, outer int) []*locker.Lease {
	leases = leases[:len(leases)-outer]
	slices.SortFunc(leases, func(a, b *locker.Lease) int { return strings.Compare(a.Key(), b.Key()) })
	return leases
}
