package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// answers is the Transactor of NewAnswers.
type answers struct{ h *DB }

// NewAnswers returns an idempotency.Transactor that keeps the answers to requests in the database
// of the work, in the table PREFIXanswer, which [Handle.Migrate] creates. The answer and the work
// are committed in one transaction. So an answer is stored if and only if the work was done, even
// if a process dies at the worst moment or the lock server loses its data. The work gets its
// transaction from [TxFromContext], and calls no other service, because it is inside of it. This
// transaction claims every lease of its context, as [Handle.Within] does, and is not retried. A lock
// that the work itself takes would end before the COMMIT, so take it outside: a httplock.Rule with Key
// and Idempotency does, and in the line of a route MustNew comes before MustIdempotency. A permit of a
// semaphore and a lease without a fence are not claimed. But the transaction ends with each of these leases, and the stored answer itself
// refuses a run that another one has overtaken. [Handle.Purge] removes answers whose lifetime is over.
func NewAnswers(db *DB) (idempotency.Transactor, error) {
	once := *db.base
	once.retries = 0
	return &answers{&DB{&once, db.bind}}, nil
}

type answersKey struct{}

// inTransact is the value in the context of Transact's work.
type inTransact struct {
	answers *answers
	tx      *Tx
}

// Transact implements idempotency.Transactor.
func (a *answers) Transact(ctx context.Context, work func(ctx context.Context) error) error {
	keys, unclaimed, err := claimable(ctx)
	if err != nil {
		return err
	}
	var failed error
	fn := func(ctx context.Context, tx *Tx) error {
		if failed = work(context.WithValue(ctx, answersKey{}, inTransact{a, tx})); failed == nil {
			failed = firstEnd(unclaimed) // no claim refuses the COMMIT
		}
		return failed
	}
	bound, end := bind(ctx, unclaimed)
	defer end(nil)
	switch {
	case len(unclaimed) == 0 && len(locker.LeasesFromContext(ctx)) > 0:
		err = a.h.Within(bound, fn)
	case len(keys) > 0:
		err = a.h.WithinAll(bound, keys, fn)
	default:
		err = a.h.withoutLease(bound, fn)
	}
	if failed != nil && err != nil && !errors.Is(err, ErrIdle) {
		return failed
	}
	return err
}

// claimable returns the keys of those leases of ctx that a transaction can claim, and the leases
// that it cannot claim. Released leases are in neither. The error is that of a lease that is not
// claimed and has ended.
func claimable(ctx context.Context) (keys []string, unclaimed []*locker.Lease, err error) {
	for _, l := range locker.LeasesFromContext(ctx) {
		switch {
		case errors.Is(context.Cause(l.Context()), locker.ErrReleased):
		case l.Units() > 0 || l.Fence() == 0:
			unclaimed = append(unclaimed, l)
		default:
			keys = append(keys, l.Key())
		}
	}
	return keys, unclaimed, firstEnd(unclaimed)
}

// Load implements idempotency.Store.
func (a *answers) Load(ctx context.Context, key string) (rec idempotency.Record, err error) {
	err = a.inSeparateTx(ctx, key, func(q querier) error {
		rec, _, err = a.load(ctx, q, key, "answer_load")
		return err
	})
	return rec, err
}

// Swap implements idempotency.Store. If ctx is the context of Transact's work, Swap uses the
// transaction of this work.
func (a *answers) Swap(ctx context.Context, key string, old, next idempotency.Record, lifetime time.Duration) (now idempotency.Record, err error) {
	swap := func(q querier) error {
		now, err = a.swap(ctx, q, key, old, next, lifetime)
		return err
	}
	if in, ok := ctx.Value(answersKey{}).(inTransact); ok && in.answers == a {
		if err := checkLength(key); err != nil {
			return now, err
		}
		// If the work has ended its transaction, the answer would be committed by itself. On MySQL
		// and SQLite, this check also ends the savepoints of the work.
		if err := in.tx.Verify(ctx); err != nil {
			return now, err
		}
		return now, swap(in.tx)
	}
	err = a.inSeparateTx(ctx, key, swap)
	return now, err
}

// swap replaces old by next with q, if the key has old.
func (a *answers) swap(
	ctx context.Context, q querier, key string, old, next idempotency.Record, lifetime time.Duration,
) (idempotency.Record, error) {
	now, exists, err := a.load(ctx, q, key, "answer_lock")
	if err != nil || now.Run != old.Run || now.Open != old.Open {
		return now, err
	}
	open := 0
	if next.Open {
		open = 1
	}
	expires := time.Now().Add(lifetime).UnixMilli()
	switch {
	case next.Run == "":
		_, err = q.ExecContext(ctx, a.h.stmts["answer_remove"], []byte(key))
	case exists:
		_, err = q.ExecContext(ctx, a.h.stmts["answer_update"], []byte(next.Run), open, next.Answer, expires, []byte(key))
	default:
		_, err = q.ExecContext(ctx, a.h.stmts["answer_insert"], []byte(key), []byte(next.Run), open, next.Answer, expires)
	}
	return next, err
}

// querier runs the statements and the queries of a transaction.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// inSeparateTx runs work in a separate transaction, for a valid key. If this transaction collides
// with another transaction, inSeparateTx repeats it.
func (a *answers) inSeparateTx(ctx context.Context, key string, work func(q querier) error) error {
	if err := checkLength(key); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.h.answer)
	defer cancel()
	var err error
	for pause := range betweenTries {
		err = a.h.inSeparateTx(ctx, func(tx Transaction) error { return work(tx.(*standard)) })
		collided := a.h.dialect.isTemporary(err) || a.h.dialect.isDuplicate(err)
		if err == nil || !collided || !pauseFor(ctx, pause) {
			break
		}
	}
	if err != nil && ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return err
}

// load returns the Record of key, which it reads with query. The result exists reports whether
// there is a row, which may have expired.
func (a *answers) load(ctx context.Context, q querier, key, query string) (rec idempotency.Record, exists bool, err error) {
	var open, expires int64
	var run []byte
	err = q.QueryRowContext(ctx, a.h.stmts[query], []byte(key)).Scan(&run, &open, &rec.Answer, &expires)
	if errors.Is(err, sql.ErrNoRows) {
		return rec, false, nil
	}
	if err != nil || expires <= time.Now().UnixMilli() {
		return idempotency.Record{}, true, err
	}
	rec.Run, rec.Open = string(run), open != 0
	if len(rec.Answer) == 0 { // some drivers read NULL as an empty slice; no encoded answer is empty
		rec.Answer = nil
	}
	return rec, true, nil
}
