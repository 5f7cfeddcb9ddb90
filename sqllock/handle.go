package sqllock

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/latchkit/latchkit/locker"
)

// A Handle runs transactions of one database under the locks of one Locker. T is the type of the
// transaction that functions get. [New] and [NewWith] return Handles, and so do the modules in
// contrib. Make one Handle at the start of the program, for all goroutines. Handles with other
// options may use the same database, but must have the same [WithTablePrefix] for the same locks.
type Handle[T any] struct {
	*base
	bind func(fn func(ctx context.Context, tx T) error) work
}

// DB is the Handle of [New], for database/sql.
type DB = Handle[*Tx]

// New returns a Handle for db, a database of database/sql. Its functions get a [*Tx]:
//
//	db, err := sqllock.New(l, pool)
//	…
//	err = db.Do(ctx, locker.Rule{Key: "account:42"}, func(ctx context.Context, tx *sqllock.Tx) error { … })
//
// A caller of Do waits until its ctx ends, or for the Rule's Wait. A refused caller gets
// locker.ErrBusy, or locker.ErrUnavailable while Redis does not answer, and its function has not
// run. l may be nil: without a Locker, Do, DoAll and Repair return an error.
func New(l locker.Locker, db Beginner, opts ...Option) (*DB, error) {
	b, err := newBase(l, 0, db, opts)
	if err != nil {
		return nil, err
	}
	b.begin = func(ctx context.Context, opts *sql.TxOptions) (any, Transaction, error) {
		s, err := openStandard(ctx, db, b.dialect, opts)
		if err != nil {
			return nil, nil, err
		}
		return nil, s, nil
	}
	return &DB{b, func(fn func(context.Context, *Tx) error) work {
		return func(ctx context.Context, a *attempt) error {
			tx := &Tx{&Claim{a}, a.tx.(*standard).Tx}
			return fn(context.WithValue(ctx, txKey{}, tx), tx)
		}
	}}, nil
}

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
// ErrStaleFence, ErrFenceRegressed, ErrTooLate and ErrIdle; locker.ErrDone with [Handle.Operation];
// errors of the database; and errors of fn. An error of fn is returned unchanged, and joined with
// locker.ErrLost if the lease was lost. After several attempts, ErrRetries wraps the error of the
// last attempt. After a loss of the lease, nothing is committed. A loss of the lease after the
// COMMIT is not an error, because the claim in the database refuses older holders.
//
// fn may be called several times, each time in a new transaction; see [WithRetries]. fn's context
// ends with ctx or with the lease. It has the lease, and [ClaimFromContext] finds the claim there.
// The end of ctx ends the wait and the transaction, but not a COMMIT that was sent. [WithAnswerWithin] limits the wait for the answer to a COMMIT. If fn
// panics, the transaction is rolled back, the lock is released, and the panic continues.
//
// Do never waits for a lock that its own caller holds. If ctx holds the key already, by the same
// Locker, Do returns locker.ErrSelfDeadlock: use [Handle.Within]. A transaction inside of another one of the same Handle
// is refused with locker.ErrUnsupported, too. A transaction of another Handle is not: if it claims
// the same key, or the pool has no free connection, it waits until its ctx ends.
func (h *Handle[T]) Do(ctx context.Context, rule locker.Rule, fn func(ctx context.Context, tx T) error) error {
	return h.DoAll(ctx, []locker.Rule{rule}, fn)
}

// DoAll is Do for several locks, which it acquires as [locker.RunAll] does. The fences are always
// claimed in the order of their keys, so calls never deadlock on their claims.
//
// Some Rules may be Exclusive and others Shared. The resource of a Shared Rule is not claimed, but
// its row is locked against claims until the transaction ends.
func (h *Handle[T]) DoAll(ctx context.Context, rules []locker.Rule, fn func(ctx context.Context, tx T) error) error {
	if len(rules) == 0 {
		return fmt.Errorf(
			"%w: sqllock: DoAll without rules has nothing to lock; begin a transaction of your own", locker.ErrInvalidRule)
	}
	var keys []string
	for _, r := range rules {
		keys = append(keys, r.Key)
	}
	c, err := h.newCall(ctx, keys, h.bind(fn))
	if err != nil {
		return err
	}
	return c.run(ctx, rules)
}

// Within is Do under the leases that ctx already has, such as the lease of a guarded request. It
// acquires no lock. It claims every lease of ctx: the lease of each [locker.Run] around the caller,
// and all leases of a [locker.RunAll]. Without a lease, the error is locker.ErrUnguarded. Released
// leases are ignored. If any other lease of ctx has ended, Within returns an error.
func (h *Handle[T]) Within(ctx context.Context, fn func(ctx context.Context, tx T) error) error {
	return h.within(ctx, nil, fn)
}

// WithinAll is Within for the leases of ctx with the given keys only. If ctx lacks one of the keys,
// the error is locker.ErrUnguarded. So WithinAll also asserts that the caller holds the keys.
func (h *Handle[T]) WithinAll(ctx context.Context, keys []string, fn func(ctx context.Context, tx T) error) error {
	if len(keys) == 0 {
		return fmt.Errorf(
			"%w: sqllock: WithinAll without keys has nothing to claim; name the keys, or use Within", locker.ErrInvalidRule)
	}
	return h.within(ctx, keys, fn)
}

// within calls fn in a transaction under those leases of ctx that have the keys, or under all
// leases of ctx if keys is nil.
func (h *Handle[T]) within(ctx context.Context, keys []string, fn func(ctx context.Context, tx T) error) error {
	leases, err := leasesOf(ctx, keys)
	if err != nil {
		return err
	}
	c, err := h.newCall(ctx, keysOf(leases), h.bind(fn))
	if err != nil {
		return err
	}
	return c.within(ctx, leases)
}

// withoutLease calls fn in a transaction that claims nothing. It makes one attempt.
func (h *Handle[T]) withoutLease(ctx context.Context, fn func(ctx context.Context, tx T) error) error {
	c, err := h.newCall(ctx, nil, h.bind(fn))
	if err == nil {
		_, err = c.try(ctx, nil)
	}
	return err
}

// Operation returns a Handle like h whose transactions happen once: they write name, in the
// transaction of the work. If a transaction with name was committed before, the call returns
// locker.ErrDone and does not call the function. This holds even if the lock server has lost its
// data. name is the caller's name for the work, such as "invoice:4711": at most 512 bytes of UTF-8.
// [Handle.Purge] removes old names.
func (h *Handle[T]) Operation(name string) *Handle[T] {
	b := *h.base
	b.operation, b.hasOperation = name, true
	return &Handle[T]{&b, h.bind}
}
