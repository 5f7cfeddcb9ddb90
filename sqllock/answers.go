package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/sleep"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// Answers is an idempotency.Transactor that keeps the answers to requests in the database of the
// work. The answer and the work are committed in one transaction. So an answer is stored if and
// only if the work was done, even if a process dies at the worst moment or the lock server loses
// its data. The work gets its transaction from [TxFromContext]. [NewAnswers] returns Answers.
type Answers struct {
	db   Beginner
	h    *DB
	call *call // has no function
}

var _ idempotency.Transactor = (*Answers)(nil)

// NewAnswers returns Answers in the table PREFIXanswer of db, which [Handle.Migrate] creates. The
// options are those of [New], for the transactions of the work.
func NewAnswers(db Beginner, opts ...Option) (*Answers, error) {
	h, err := New(nil, db, append(slices.Clip(opts), WithRetries(0))...)
	if err != nil {
		return nil, err
	}
	return &Answers{db, h, &call{base: h.base}}, nil
}

type answersKey struct{}

// inTransact is the value in the context of Transact's work.
type inTransact struct {
	answers *Answers
	tx      *Tx
}

// Transact runs work once, in a transaction that claims every lease of ctx, as [Handle.Within]
// does. If ctx has no lease, nothing is claimed.
func (a *Answers) Transact(ctx context.Context, work func(ctx context.Context) error) error {
	var failed error
	fn := func(ctx context.Context, tx *Tx) error {
		failed = work(context.WithValue(ctx, answersKey{}, inTransact{a, tx}))
		return failed
	}
	var err error
	if len(locker.LeasesFromContext(ctx)) > 0 {
		err = a.h.Within(ctx, fn)
	} else {
		err = a.plain(ctx, fn)
	}
	if failed != nil && err != nil {
		return failed
	}
	return err
}

// plain runs fn in a transaction that claims nothing, and commits it.
func (a *Answers) plain(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	s, err := openStandard(ctx, a.db, a.call.dialect, nil)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // an error, or a panic
			_ = s.Rollback(ctx)
		}
	}()
	tx := newTx(&attempt{call: a.call, tx: s}, s)
	if err := fn(context.WithValue(ctx, txKey{}, tx), tx); err != nil {
		return err
	}
	if err := tx.endError(); err != nil {
		return err
	}
	done = true
	return s.Commit(ctx)
}

// Load returns the Record of key.
func (a *Answers) Load(ctx context.Context, key string) (rec idempotency.Record, found bool, err error) {
	err = a.inSeparateTx(ctx, key, func(q querier) error {
		rec, found, err = a.load(ctx, q, key, "answer_load")
		return err
	})
	return rec, found, err
}

// Begin writes a Record with State InProgress, unless an earlier Record prevents that.
func (a *Answers) Begin(
	ctx context.Context, key string, fingerprint [32]byte, fence uint64, lifetime time.Duration,
) (earlier idempotency.Record, found, began bool, err error) {
	rec := idempotency.Record{Fingerprint: fingerprint, Fence: fence, State: idempotency.InProgress}
	err = a.inSeparateTx(ctx, key, func(q querier) error {
		if earlier, found, err = a.load(ctx, q, key, "answer_lock"); err != nil {
			return err
		}
		began = !found || earlier.State == idempotency.InProgress && earlier.Fingerprint == fingerprint && earlier.Fence <= fence
		if !began {
			return nil
		}
		return a.write(ctx, q, key, rec, lifetime, found)
	})
	return earlier, found, began, err
}

// Save stores rec in place of the Record that Begin has written. If ctx is the context of
// Transact's work, Save uses the transaction of this work.
func (a *Answers) Save(ctx context.Context, key string, rec idempotency.Record, lifetime time.Duration) error {
	if in, ok := ctx.Value(answersKey{}).(inTransact); ok && in.answers == a {
		if err := checkAnswerKey(key); err != nil {
			return err
		}
		return a.save(ctx, in.tx, key, rec, lifetime)
	}
	return a.inSeparateTx(ctx, key, func(q querier) error { return a.save(ctx, q, key, rec, lifetime) })
}

// save stores rec with q, in place of the Record that Begin has written.
func (a *Answers) save(ctx context.Context, q querier, key string, rec idempotency.Record, lifetime time.Duration) error {
	earlier, found, err := a.load(ctx, q, key, "answer_lock")
	same := earlier.Fingerprint == rec.Fingerprint && earlier.Fence == rec.Fence
	switch {
	case err != nil:
		return err
	case !found, same && earlier.State == idempotency.InProgress:
		return a.write(ctx, q, key, rec, lifetime, found)
	case same: // an earlier execution of this call has saved rec
		return nil
	}
	return fmt.Errorf("sqllock: save the answer to %q: %w", key, idempotency.ErrOvertaken)
}

// Forget removes the Record that Begin has written with this fence.
func (a *Answers) Forget(ctx context.Context, key string, fence uint64) error {
	return a.inSeparateTx(ctx, key, func(q querier) error {
		_, err := q.ExecContext(ctx, a.call.stmts["answer_forget"], []byte(key), int64(fence))
		return err
	})
}

// Purge removes expired Records, and returns how many it has removed. Run it daily.
func (a *Answers) Purge(ctx context.Context) (removed int64, err error) {
	err = a.inSeparateTx(ctx, "", func(q querier) error {
		r, err := q.ExecContext(ctx, a.call.stmts["answer_purge"], time.Now().UnixMilli())
		if err != nil {
			return err
		}
		removed, err = r.RowsAffected()
		return err
	})
	return removed, err
}

// checkAnswerKey refuses keys that are too long for an index. A key may contain any bytes.
func checkAnswerKey(key string) error {
	if len(key) > maxKey {
		return fmt.Errorf("%w: sqllock writes the key into an indexed column: it has %d bytes, and at most %d are allowed",
			locker.ErrInvalidKey, len(key), maxKey)
	}
	return nil
}

// querier runs the statements and the queries of a transaction.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// inSeparateTx runs work in a separate transaction, for a valid key. If this transaction collides
// with another transaction, inSeparateTx repeats it.
func (a *Answers) inSeparateTx(ctx context.Context, key string, work func(q querier) error) error {
	if err := checkAnswerKey(key); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.call.answer)
	defer cancel()
	var err error
	for pause := range betweenTries {
		err = a.call.inSeparateTx(ctx, func(tx Transaction) error { return work(tx.(*standard)) })
		collided := a.call.dialect.isTemporary(err) || a.call.dialect.isDuplicate(err)
		if err == nil || !collided || !sleep.For(ctx, pause) {
			break
		}
	}
	if err != nil && ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return err
}

// load returns the Record of key, which it reads with query. An expired Record counts as missing.
func (a *Answers) load(ctx context.Context, q querier, key, query string) (rec idempotency.Record, found bool, err error) {
	var fence, state, expires int64
	var fingerprint, response []byte
	err = q.QueryRowContext(ctx, a.call.stmts[query], []byte(key)).Scan(&fingerprint, &fence, &state, &response, &expires)
	switch {
	case errors.Is(err, sql.ErrNoRows) || err == nil && expires <= time.Now().UnixMilli():
		return rec, false, nil
	case err != nil:
		return rec, false, err
	case len(fingerprint) != len(rec.Fingerprint) || state < 0 || state > math.MaxUint8:
		return rec, false, fmt.Errorf("sqllock: the row of the answer to %q was not written by this version", key)
	}
	rec = idempotency.Record{Fingerprint: [32]byte(fingerprint), Fence: uint64(fence), State: idempotency.State(state)}
	if len(response) > 0 {
		err = rec.Response.UnmarshalBinary(response)
	}
	return rec, err == nil, err
}

// write writes the Record of key. found reports whether the Record exists. If it exists, its row is
// locked.
func (a *Answers) write(
	ctx context.Context, q querier, key string, rec idempotency.Record, lifetime time.Duration, found bool,
) error {
	var response []byte
	if rec.State == idempotency.Answered {
		var err error
		if response, err = rec.Response.MarshalBinary(); err != nil {
			return err
		}
	}
	if !found { // the key may still have an expired Record
		if _, err := q.ExecContext(ctx, a.call.stmts["answer_remove"], []byte(key), time.Now().UnixMilli()); err != nil {
			return err
		}
		_, err := q.ExecContext(ctx, a.call.stmts["answer_insert"], []byte(key), rec.Fingerprint[:], int64(rec.Fence),
			int64(rec.State), response, time.Now().Add(lifetime).UnixMilli())
		return err
	}
	_, err := q.ExecContext(ctx, a.call.stmts["answer_update"], int64(rec.Fence), int64(rec.State), response,
		time.Now().Add(lifetime).UnixMilli(), []byte(key))
	return err
}
