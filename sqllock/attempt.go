package sqllock

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// attempt is one try of the transaction: begin, claim, work, commit.
type attempt struct {
	*call
	leases         []*locker.Lease // in the order of their keys; none in a transaction of NewAnswers without a lease
	id             string          // the name of the operation in the ledger
	handle         any             // the value that Begin has returned for the function
	tx             Transaction
	outer          *attempt // the attempt whose function began this attempt; nil: none
	idle           idleness
	rowsBefore     int64 // the result of rowsWritten at the beginning of the transaction
	sessionChanged bool  // the settings of MySQL's session are changed

	open  bool        // the transaction was begun, and COMMIT was not sent
	ended atomic.Bool // the attempt is over, so nobody waits for it any more

	borrowed bool // true for InTx: other code began the transaction, and will end it
}

type attemptKey struct{}

// newAttempt returns an attempt under leases, before its transaction begins.
func (c *call) newAttempt(ctx context.Context, leases []*locker.Lease) *attempt {
	a := &attempt{call: c, leases: leases, id: newID()}
	a.outer, _ = ctx.Value(attemptKey{}).(*attempt)
	return a
}

// maxOwner is the largest length of an owner, which is the length of its column.
const maxOwner = 64

// process names this process as the owner of claims. The name also helps operators who read the
// table.
var process = sync.OnceValue(func() string {
	host, _ := os.Hostname()
	name := fmt.Sprintf("%d-%s", os.Getpid(), rand.Text()[:12])
	host = strings.ToValidUTF8(host, "")
	return host[:min(len(host), maxOwner-len(name)-1)] + "-" + name
})

// newID returns the name of an operation: the time in microseconds, and 60 random bits. The time
// comes first, so the primary key finds the oldest operations.
func newID() string { return idAt(time.Now()) + rand.Text()[:12] }

// idAt returns the part of an operation's name that contains the time t.
func idAt(t time.Time) string { return fmt.Sprintf("%014x", t.UnixMicro()) }

// try makes one attempt under leases. again means that nothing was committed, and that another
// attempt may succeed. Everything runs under one context, which ends with the caller's context or
// with a lease. But once COMMIT was sent, try waits for its answer, because the outcome would be
// unknown otherwise.
func (c *call) try(ctx context.Context, leases []*locker.Lease) (again bool, err error) {
	a := c.newAttempt(ctx, leases)
	defer a.ended.Store(true)
	ctx, end := bind(context.WithValue(ctx, attemptKey{}, a), leases)
	defer end(nil)
	defer a.rollback(ctx) // after an error, a loss or a panic
	margin := c.marginOf(leases)
	if again, err := a.begin(ctx); err != nil {
		return again, err
	}
	if err := a.fn(ctx, a); err != nil {
		return a.handleError(err)
	}
	if err := a.leave(ctx, margin); err != nil {
		again, err := a.handleError(err)
		return again, a.explain(ctx, err)
	}
	a.open = false
	return a.commit(ctx, end)
}

// begin begins the transaction, and runs its first statements.
func (a *attempt) begin(ctx context.Context) (again bool, err error) {
	a.idle.begin(a)
	if a.handle, a.tx, err = a.base.begin(ctx, a.options); err == nil {
		a.open = true
		err = a.enter(ctx)
	}
	if err == nil {
		return false, nil
	}
	return a.dialect.isTemporary(err) || a.dialect.isLockTimeout(err), a.explain(ctx, err)
}

// handleError returns whether the transaction may be retried after err, and the error to return.
// err is an error of fn, or came after fn had returned. If the server may have ended the
// transaction for idleness, the transaction is not retried: fn would be idle again, and may have
// called other services.
func (a *attempt) handleError(err error) (again bool, _ error) {
	if idle := a.idle.judge(err); idle != nil {
		return false, idle
	}
	return a.dialect.isTemporary(err), err
}

// bind returns a context that ends with ctx or with any of the leases, and a function that ends it.
func bind(ctx context.Context, leases []*locker.Lease) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stops := make([]func() bool, 0, len(leases))
	for _, l := range leases {
		lease := l.Context()
		stops = append(stops, context.AfterFunc(lease, func() { cancel(context.Cause(lease)) }))
	}
	return ctx, func(cause error) {
		for _, stop := range stops {
			stop()
		}
		cancel(cause)
	}
}

// explain returns a clearer error for err, the error of a statement of this package. For a missing
// table, the error tells what to do. If err only shows that ctx has ended, the result is the cause
// of this end. Otherwise it is err itself.
func (a *attempt) explain(ctx context.Context, err error) error {
	if a.dialect.isMissingTable(err) {
		return fmt.Errorf("sqllock: a table is missing; call Migrate(ctx) of the value that New returned: %w", err)
	}
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, sql.ErrTxDone)
	if ctx.Err() != nil && ended {
		return context.Cause(ctx)
	}
	return err
}

// rollback rolls back an open transaction, even if ctx has ended. It waits for a limited time,
// because the lock is held meanwhile. An error of the rollback is ignored: a server that gets no
// ROLLBACK rolls back when the connection ends.
func (a *attempt) rollback(ctx context.Context) {
	if !a.open {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.answer)
	defer cancel()
	a.undo(ctx)
}

// undo rolls back, and restores the settings of MySQL's session.
func (a *attempt) undo(ctx context.Context) {
	if s, ok := a.tx.(*standard); a.sessionChanged && (!ok || s.conn == nil) {
		a.sessionChanged = false
		if _, err := a.tx.Exec(ctx, "ROLLBACK"); err == nil {
			_, _ = a.exec(ctx, "restore")
		}
	}
	_ = a.tx.Rollback(ctx)
}

// subject returns the first resource, and the fence of its lease. The transaction has its row in
// the ledger under this resource. A transaction without leases has "" and 0.
func (a *attempt) subject() (resource string, fence uint64) {
	if len(a.leases) == 0 {
		return "", 0
	}
	return a.leases[0].Key(), a.leases[0].Fence()
}

// newError returns an Error about the subject. reason is its sentinel.
func (a *attempt) newError(reason error) *Error {
	resource, fence := a.subject()
	return &Error{Resource: resource, Fence: fence, Err: reason}
}
