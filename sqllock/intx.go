package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// InTx claims every lease of ctx in a transaction that other code began and will end, such as a
// framework that manages transactions. d is the database's kind. The caller has these duties:
//
//   - Call InTx before the transaction reads anything. On MySQL, and on PostgreSQL at READ
//     COMMITTED, earlier reads may miss what earlier holders have committed.
//   - Call [Claim.Verify] just before COMMIT. Verify returns an error if a lease has ended, or if
//     tx is not in the transaction that has claimed.
//   - If COMMIT gets no answer, call [Resolve] with [Claim.Op].
//   - InTx does not retry. Roll back when InTx returns an error.
//
// The transaction may be idle for as long as the
// server allows. On PostgreSQL, [WithIdleLimit] can set a shorter time. Errors are those of
// [Within] and, with [WithOperation], locker.ErrDone.
func InTx(ctx context.Context, d Dialect, tx *sql.Tx, opts ...Option) (*Claim, error) {
	if tx == nil {
		return nil, fmt.Errorf("%w: sqllock: InTx: the transaction is nil", locker.ErrInvalidRule)
	}
	return InTxWith(ctx, d, &standard{Tx: tx, release: func() {}}, opts...)
}

// InTxWith is [InTx] for a library that is not database/sql. InTxWith does not call tx's Commit or
// Rollback.
func InTxWith(ctx context.Context, d Dialect, tx Transaction, opts ...Option) (*Claim, error) {
	leases, err := leasesOf(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := checkFences(leases); err != nil {
		return nil, err
	}
	terms := make([]term, len(leases))
	for i, l := range leases {
		terms[i] = term{l.Key(), l.Mode()}
	}
	c, err := newCall(terms, append([]Option{WithDialect(d)}, opts...))
	if err != nil {
		return nil, err
	}
	a := &attempt{call: c, leases: leases, id: newID(), tx: tx, borrowed: true}
	a.outer, _ = ctx.Value(attemptKey{}).(*attempt)
	if err := a.checkNested(); err != nil {
		return nil, err
	}
	a.idle.begin(a)
	if c.idleLimit == 0 {
		a.idle.limit = math.MaxInt32 * time.Millisecond
	}
	bound, unbind := bind(ctx, leases)
	defer unbind()
	if err := a.enter(bound); err != nil {
		return nil, a.explain(bound, err)
	}
	if err := a.mark(bound); err != nil {
		return nil, a.explain(bound, err)
	}
	return &Claim{a}, nil
}

// Verify returns nil only if the leases are held with enough time left to commit, and the
// transaction is open and has claimed. Verify is for transactions of [InTx]: Do and similar
// functions verify by themselves.
func (c *Claim) Verify(ctx context.Context) error {
	a := c.attempt
	for _, l := range a.leases {
		if l.Context().Err() != nil {
			return context.Cause(l.Context())
		}
	}
	if rest := remaining(a.leases); rest < a.marginOf(a.leases) {
		return a.newError(a.leases[0], fmt.Errorf("%w: %v", ErrTooLate, max(rest, 0).Round(time.Millisecond)), 0)
	}
	if err := a.prove(ctx); err != nil {
		return err
	}
	if open := a.stmts["open"]; open != "" { // the transaction is marked again, so that Verify may be called again
		return a.tx.Exec(ctx, open)
	}
	return nil
}
