package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// leave runs the last statements before the COMMIT. Then it checks that margin is left of the
// leases.
func (a *attempt) leave(ctx context.Context, margin time.Duration) error {
	if a.commitsAfter() == nil {
		if err := a.prove(ctx); err != nil {
			return err
		}
	}
	if a.reads { // after the proof: a function that has written may have committed, too
		if err := a.checkUnwritten(ctx); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if a.reads {
		return nil
	}
	return a.checkTime(margin)
}

// commitsAfter returns the transaction if it sends the proof together with COMMIT, in one round trip;
// otherwise nil.
func (a *attempt) commitsAfter() commitAfterer {
	if a.dialect != Postgres {
		return nil
	}
	t, _ := a.tx.(commitAfterer)
	return t
}

// prove returns an error if the transaction that was begun is not open any more. A COMMIT or
// ROLLBACK in the text of a statement ends the transaction, and a statement's error may end it too,
// as a deadlock does on MySQL. Statements that ran after the end of the transaction had no claim.
func (a *attempt) prove(ctx context.Context) error {
	var err error
	if a.dialect == Postgres {
		var one int
		err = a.row(ctx, "proof", []any{a.id}, &one)
	} else {
		_, err = a.exec(ctx, "proof")
	}
	if errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil { // by Commit or Rollback of the *sql.Tx itself
		return a.endedError()
	}
	return a.proofError(err)
}

func (a *attempt) endedError() error {
	e := a.newError(ErrEnded)
	e.Op = a.op()
	return e
}

// proofError returns the error that Do returns for err, the error of a proof.
func (a *attempt) proofError(err error) error {
	switch {
	case a.dialect.failsProof(err):
		return a.endedError()
	case a.dialect == Postgres && state(err) == "25P02":
		return fmt.Errorf("sqllock: a statement of the transaction has failed, and the function has ignored its error: %w", err)
	}
	return err
}

// rowsWritten returns how many rows the connection has changed so far. It is 0 for databases that
// refuse writes in read-only transactions.
func (a *attempt) rowsWritten(ctx context.Context) (rows int64, err error) {
	if query := a.stmts["written"]; query != "" {
		err = a.tx.Row(ctx, query, nil, &rows)
	}
	return rows, err
}

// checkTime returns an error if a lease has ended, or if less than margin is left of the leases.
func (a *attempt) checkTime(margin time.Duration) error {
	if err := firstEnd(a.leases); err != nil {
		return err
	}
	rest := remaining(a.leases)
	if rest >= margin {
		return nil
	}
	return a.newError(fmt.Errorf("%w: %v", ErrTooLate, max(rest, 0).Round(time.Millisecond)))
}

// checkUnwritten returns an error if a read-only transaction has written rows, which no claim
// guards.
func (a *attempt) checkUnwritten(ctx context.Context) error {
	rows, err := a.rowsWritten(ctx)
	if err != nil {
		return err
	}
	if rows != a.rowsBefore {
		return a.newError(fmt.Errorf(
			"%w: the transaction has written, although WithTxOptions sets ReadOnly", locker.ErrUnsupported))
	}
	return nil
}
