package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// idBytes is the length of an operation's name in the ledger.
const idBytes = 26

// commit commits, and finds out what became of a COMMIT without an answer. end ends the transaction's context. Again means
// that nothing was committed, and another attempt may succeed.
//
//	answer to COMMIT                     ledger                   result
//	done                                                          nil
//	refused: nothing was committed                                that error; again if the database says so
//	none: fn has ended the transaction   has the operation        nil
//	                                     has it not               an error
//	none, or one that proves nothing     has the operation        nil
//	                                     has it not               that error, again
//	                                     does not answer either   ErrCommitUnknown, never again
func (a *attempt) commit(ctx context.Context, end context.CancelCauseFunc) (again bool, err error) {
	ctx = context.WithoutCancel(ctx)
	err = a.sendCommit(ctx, end)
	switch {
	case err == nil:
		return false, nil
	case a.verifies || a.dialect.refused(err): // who only reads has nothing to lose
		return a.dialect.passing(err), err
	default:
		return a.inquire(ctx, err)
	}
}

// inquire finds out what became of a transaction that has ended with err, which proves nothing.
func (a *attempt) inquire(ctx context.Context, err error) (again bool, _ error) {
	committed, asked := a.ask(ctx, a.leases[0].Key(), a.id)
	if asked != nil {
		e := a.fail(a.leases[0], fmt.Errorf("%w (COMMIT: %w; ledger: %w)", ErrCommitUnknown, err, asked), 0)
		e.Op = a.op()
		return false, e
	}
	switch {
	case committed:
		return false, nil
	case errors.Is(err, sql.ErrTxDone):
		return false, fmt.Errorf("sqllock: the function has ended the transaction by itself; leave Commit and Rollback to Do: %w", err)
	default:
		return true, fmt.Errorf("sqllock: COMMIT was not confirmed, and the transaction was rolled back: %w", err)
	}
}

// sendCommit commits and waits for the answer, but not for ever: not every driver gives up by itself. The goroutine of a
// COMMIT that hangs ends when its driver does.
func (a *attempt) sendCommit(ctx context.Context, end context.CancelCauseFunc) error {
	ctx, cancel := context.WithTimeout(ctx, a.answer)
	defer cancel()
	answer := make(chan error, 1)
	go func() { answer <- a.tx.Commit(ctx) }()
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		end(errNoAnswer)
		return errNoAnswer
	}
}

var errNoAnswer = errors.New("no answer in time")

// ask asks the ledger until it answers, or time is up.
func (a *attempt) ask(ctx context.Context, resource, id string) (committed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.answer)
	defer cancel()
	for pause := range betweenTries {
		if committed, err = a.recall(ctx, resource, id); err == nil {
			return committed, nil
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return false, err
		}
	}
	return false, err // betweenTries has no end
}

// recall finds out whether an operation was committed, and makes that final: it gives the operation up by taking its place in the
// ledger. The database lets it wait while a transaction that has noted the operation is open; a transaction that has not
// noted it yet cannot any more. READ COMMITTED, because the ledger must be read as it is after that wait.
func (c *call) recall(ctx context.Context, resource, id string) (committed bool, err error) {
	var opts *sql.TxOptions
	if c.dialect != SQLite {
		opts = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	tx, err := c.begin(ctx, opts, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // does nothing after Commit
	if err := tx.Exec(ctx, c.stmts["give_up"], id, resource); err != nil {
		return false, err
	}
	var found int
	if err := tx.Row(ctx, c.stmts["recall"], []any{id}, &found); err != nil {
		return false, err
	}
	return found > 0, tx.Commit(ctx)
}

// op is the operation's name for Resolve: with the resource, so that people see what it was about.
func (a *attempt) op() string { return a.id + ":" + a.leases[0].Key() }

// Resolve says whether a transaction was committed whose COMMIT got no answer: op is the Op of an [*Error] with
// ErrCommitUnknown, or what [Tx.Op] returned. It waits until the transaction is over, at most until ctx ends; give it a
// time-out. The answer is final: a transaction that may still come, as one of VerifyLast on SQLite may, is refused then. It is
// right as long as the ledger has not been purged of op, see [Purge].
//
// The error is the database's; locker.ErrInvalidRule for a string that is no operation.
func Resolve(ctx context.Context, db Beginner, op string, opts ...Option) (committed bool, err error) {
	id, resource, ok := strings.Cut(op, ":")
	if !ok || len(id) != idBytes {
		return false, fmt.Errorf("%w: sqllock: Resolve: %q is no operation; take Op from the error or from the Tx", locker.ErrInvalidRule, op)
	}
	if err := checkKey(resource); err != nil {
		return false, err
	}
	c, err := withDB(db, nil, opts)
	if err != nil {
		return false, err
	}
	for pause := range betweenTries {
		committed, err = c.recall(ctx, resource, id)
		if err == nil || !c.dialect.passing(err) || !sleep(ctx, pause, longest) {
			break
		}
	}
	return committed, err
}

const longest = time.Hour

// Purge removes operations older than age from the ledger, and says how many: those cannot be resolved any more. Run it
// daily, with an age longer than transactions last and than anybody would wait before calling [Resolve]: 1 h is the least. Ages are
// told by the clocks of the processes.
//
// Rows of fences are small and few, one for each resource, and stay.
func Purge(ctx context.Context, db Beginner, age time.Duration, opts ...Option) (removed int64, err error) {
	if age < time.Hour {
		return 0, fmt.Errorf("%w: sqllock: Purge: an age of %v; give 1h or more", locker.ErrInvalidRule, age)
	}
	c, err := withDB(db, nil, opts)
	if err != nil {
		return 0, err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	result, err := tx.ExecContext(ctx, c.stmts["forget"], idAt(time.Now().Add(-age)))
	if err != nil {
		return 0, err
	}
	if removed, err = result.RowsAffected(); err != nil {
		return 0, err
	}
	return removed, tx.Commit()
}
