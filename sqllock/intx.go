package sqllock

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/latchkit/latchkit/locker"
)

// InTx claims every lease of ctx in a transaction that other code began and will end, such as a
// framework that manages transactions. The caller has these duties:
//
//   - Call InTx before the transaction reads anything. On MySQL, and on PostgreSQL at READ
//     COMMITTED, earlier reads may miss what earlier holders have committed.
//   - Call [Claim.Verify] just before COMMIT. Verify returns an error if a lease has ended, or if
//     tx is not in the transaction that has claimed.
//   - If COMMIT gets no answer, call [Handle.Resolve] with [Claim.Op].
//   - InTx does not retry. Roll back when InTx or a statement returns an error. On MySQL, a
//     deadlock ends the transaction, and each later statement would be committed by itself: InTx
//     leaves the settings of the session as they are.
//
// The resource of a Shared lease is not claimed, but its row is locked against claims until the
// transaction ends. A Handle with ReadOnly in [WithTxOptions] has no InTx: it returns
// locker.ErrUnsupported.
//
// The transaction may be idle for as long as the server allows. On PostgreSQL, [WithIdleLimit] can
// set a shorter time. Errors are those of Within and, with Operation, locker.ErrDone.
func (h *Handle[T]) InTx(ctx context.Context, tx *sql.Tx) (*Claim, error) {
	return h.InTxWith(ctx, &standard{Tx: tx})
}

// InTxWith is InTx for a library that is not database/sql. InTxWith does not call tx's Commit or
// Rollback.
func (h *Handle[T]) InTxWith(ctx context.Context, tx Transaction) (*Claim, error) {
	leases, err := leasesOf(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := checkFences(leases); err != nil {
		return nil, err
	}
	c, err := h.newCall(ctx, keysOf(leases), nil)
	if err != nil {
		return nil, err
	}
	if c.reads {
		return nil, fmt.Errorf("%w: sqllock: InTx writes its claim, and WithTxOptions sets ReadOnly; "+
			"use a Handle without ReadOnly, or Within", locker.ErrUnsupported)
	}
	a := c.newAttempt(ctx, leases)
	a.tx, a.borrowed = tx, true
	a.idle.begin(a)
	bound, end := bind(ctx, leases)
	defer end(nil)
	if err := a.enter(bound); err != nil {
		return nil, a.explain(bound, err)
	}
	return &Claim{a}, nil
}

// Verify returns nil only if the leases are held with enough time left to commit, and the
// transaction is open and has claimed. Verify is for transactions of [Handle.InTx]: Do and similar
// methods verify by themselves.
func (c *Claim) Verify(ctx context.Context) error {
	a := c.attempt
	if err := a.checkTime(a.marginOf(a.leases)); err != nil {
		return err
	}
	if err := a.prove(ctx); err != nil {
		return err
	}
	if a.dialect == Postgres { // its mark stays, so that Verify may be called again
		return nil
	}
	_, err := a.exec(ctx, "open")
	return err
}
