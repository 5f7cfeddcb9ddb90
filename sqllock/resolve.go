package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/latchkit/latchkit/locker"
)

// idBytes is the length of an operation's name in the ledger.
const idBytes = 26

// commit commits, and finds the outcome of a COMMIT without an answer. end ends ctx. again means that
// nothing was committed, and that another attempt may succeed.
//
//	answer to COMMIT                     ledger                   result
//	done                                                          nil
//	the transaction is not ours          not asked                ErrEnded
//	refused: nothing was committed                                that error; again if passing
//	none, or one that proves nothing     has the operation        nil
//	                                     lacks the operation      that error, again
//	                                     does not answer either   ErrCommitUnknown, never again
func (a *attempt) commit(ctx context.Context, end context.CancelCauseFunc) (again bool, err error) {
	idle := a.idle.judge(errNoConnection) // judged before COMMIT is sent, because the transaction is not idle while Do waits for the answer
	err = a.sendCommit(ctx, end)
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, ErrEnded):
		return false, err
	case a.reads || a.dialect.isRefusal(err): // a read-only transaction has no changes, so its outcome is known
		return a.handleError(err)
	}
	over := context.Cause(ctx)
	again, err = a.inquire(context.WithoutCancel(ctx), err)
	switch {
	case again && idle != nil:
		return false, fmt.Errorf("%w: %w", ErrIdle, err)
	case again && over != nil && !errors.Is(over, errNoAnswer): // the library has rolled back at the end of ctx
		return false, over
	}
	return again, err
}

// inquire reads the ledger to find out whether a transaction was committed, because the error err
// of its COMMIT does not show that. If again is true, the transaction was not committed.
func (a *attempt) inquire(ctx context.Context, err error) (again bool, _ error) {
	resource, _ := a.subject()
	committed, asked := a.resolve(ctx, resource, a.id)
	if asked != nil {
		e := a.newError(fmt.Errorf("%w (COMMIT: %w; ledger: %w)", ErrCommitUnknown, err, asked))
		e.Op = a.op()
		return false, e
	}
	if committed {
		return false, nil
	}
	return true, fmt.Errorf("sqllock: COMMIT was not confirmed, and the transaction was rolled back: %w", err)
}

// sendCommit commits, and waits for the answer for a limited time. Without an answer, it ends the
// context of the transaction, and rolls back, so that the connection is free to read the ledger.
func (a *attempt) sendCommit(ctx context.Context, end context.CancelCauseFunc) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.answer)
	defer cancel()
	err := a.finish(ctx)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		end(errNoAnswer)
		err = errNoAnswer
	}
	a.undo(ctx)
	return err
}

// finish sends COMMIT, together with the proof if possible. With a library whose Commit gives the
// connection back to a pool, MySQL's session must be restored before.
func (a *attempt) finish(ctx context.Context) error {
	if t := a.commitsAfter(); t != nil {
		return a.proofError(t.CommitAfter(ctx, a.stmts["proof"], a.id))
	}
	if s, ok := a.tx.(*standard); !a.sessionChanged || ok && s.conn != nil {
		return a.tx.Commit(ctx)
	}
	if _, err := a.tx.Exec(ctx, "COMMIT"); err != nil {
		return err
	}
	if _, err := a.exec(ctx, "restore"); err != nil {
		return err
	}
	a.sessionChanged = false
	_ = a.tx.Commit(ctx) // closes the library's transaction; the server has committed already
	return nil
}

var (
	errNoAnswer     = errors.New("no answer in time")
	errNoConnection = fmt.Errorf("%w: %w", errNoAnswer, driver.ErrBadConn)
)

// resolve reports whether the operation id of resource was committed. It reads the ledger again and
// again, until a read succeeds or the time of WithAnswerWithin is over.
func (a *attempt) resolve(ctx context.Context, resource, id string) (committed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.answer)
	defer cancel()
	for pause := range betweenTries {
		committed, err = a.recall(ctx, resource, id)
		if err == nil || !pauseFor(ctx, pause) {
			break
		}
	}
	return committed, err
}

// recall reports whether the operation id of resource was committed. It makes the result final by
// writing a row in the operation's place in the ledger. If an open transaction has written the
// operation, recall waits until that transaction ends. A transaction that has not written the
// operation yet is refused. recall uses READ COMMITTED, because it must read the ledger as it is
// after the wait.
func (b *base) recall(ctx context.Context, resource, id string) (committed bool, err error) {
	found := 0
	recall := func() error {
		return b.inSeparateTx(ctx, func(tx Transaction) error {
			if _, err := tx.Exec(ctx, b.stmts["give_up"], id, resource); err != nil {
				return err
			}
			return tx.Row(ctx, b.stmts["recall"], []any{id}, &found)
		})
	}
	// Some drivers of SQLite wait for another writer, whatever ctx says.
	if b.dialect == SQLite {
		err = bounded(ctx, recall)
	} else {
		err = recall()
	}
	if err != nil { // the transaction may go on, and write found
		return false, err
	}
	return found > 0, nil
}

// inSeparateTx runs work in a separate transaction that claims nothing.
func (b *base) inSeparateTx(ctx context.Context, work func(tx Transaction) error) error {
	var opts *sql.TxOptions
	if b.dialect != SQLite {
		opts = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	_, tx, err := b.begin(ctx, opts)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	if err = work(tx); err == nil {
		err = tx.Commit(ctx)
	}
	if err != nil { // a library may keep its connection until the ROLLBACK
		_ = bounded(ctx, func() error { return tx.Rollback(context.WithoutCancel(ctx)) })
	}
	return err
}

// op returns the operation's name for Resolve. The name contains the resource, so that operators
// can recognise the operation.
func (a *attempt) op() string {
	resource, _ := a.subject()
	return a.id + ":" + resource
}

// Resolve reports whether a transaction was committed. Use it if the COMMIT got no answer. op is
// the Op of an [*Error] with ErrCommitUnknown or ErrEnded, or what [Claim.Op] returned. Resolve
// waits until the transaction is over, but at most until ctx ends. So give ctx a time-out. The
// result is final. The result is correct as long as Purge has not removed op from the ledger.
//
// An error is the database's error, or locker.ErrInvalidRule if op is not an operation.
func (h *Handle[T]) Resolve(ctx context.Context, op string) (committed bool, err error) {
	id, resource, ok := strings.Cut(op, ":")
	if !ok || len(id) != idBytes {
		return false, fmt.Errorf(
			"%w: sqllock: Resolve: %q is no operation; take Op from the error or from the Tx", locker.ErrInvalidRule, op)
	}
	if err := checkKey(resource); err != nil {
		return false, err
	}
	err = h.persist(ctx, func() error { committed, err = h.recall(ctx, resource, id); return err })
	return committed, err
}

// persist repeats the function do until it succeeds or fails for a lasting reason, or until ctx
// ends.
func (b *base) persist(ctx context.Context, do func() error) (err error) {
	for pause := range betweenTries {
		if err = do(); err == nil || !b.dialect.isTemporary(err) || !pauseFor(ctx, pause) {
			break
		}
	}
	return err
}
