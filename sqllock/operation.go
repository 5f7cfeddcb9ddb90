package sqllock

import (
	"context"
	"fmt"

	"github.com/latchkit/latchkit/locker"
)

// WithOperation makes the work happen once. name is written in the transaction of the work. If a
// transaction with name was committed before, the call returns locker.ErrDone and does not call the
// function. This holds even if the lock server has lost its data. name is the caller's name for the
// work, such as "invoice:4711": at most 512 bytes of UTF-8. [PurgeOperations] removes old names.
func WithOperation(name string) Option {
	return func(c *config) { c.operation, c.hasOperation = name, true }
}

// mark writes the caller's operation, or returns locker.ErrDone if the operation is done. If
// another open transaction has written the operation, mark waits for that transaction.
func (a *attempt) mark(ctx context.Context) error {
	if !a.hasOperation {
		return nil
	}
	defer a.idle.touch()
	first := a.leases[0]
	err := a.tx.Exec(ctx, a.stmts["operation"], a.operation, first.Key(), int64(first.Fence()))
	if a.dialect.isDuplicate(err) {
		return a.newError(first, fmt.Errorf("%w: operation %q", locker.ErrDone, a.operation), 0)
	}
	return err
}

func (c *config) validOperation() error {
	switch {
	case !c.hasOperation:
		return nil
	case c.operation == "" || checkKey(c.operation) != nil:
		return fmt.Errorf("%w: sqllock: WithOperation(%q): give a name of 1 to %d bytes of UTF-8 without NUL",
			locker.ErrInvalidRule, c.operation, maxKey)
	case c.tx != nil && c.tx.ReadOnly:
		return fmt.Errorf("%w: sqllock: WithOperation writes, and WithTxOptions sets ReadOnly; leave one of them out", locker.ErrInvalidRule)
	}
	return nil
}
