package idempotency_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/idempotency"
)

// failing is a Store whose calls fail.
type failing struct {
	idempotency.Store
	load, begin, save error
}

func (f failing) Load(ctx context.Context, key string) (idempotency.Record, error) {
	if f.load != nil {
		return idempotency.Record{}, f.load
	}
	return f.Store.Load(ctx, key)
}

func (f failing) Swap(ctx context.Context, key string, old, next idempotency.Record, d time.Duration) (idempotency.Record, error) {
	switch {
	case f.begin != nil && next.Open:
		return idempotency.Record{}, f.begin
	case f.save != nil && !next.Open:
		return idempotency.Record{}, f.save
	}
	return f.Store.Swap(ctx, key, old, next, d)
}

func TestNothingRunsWhileTheStoreFails(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		for _, store := range []failing{{Store: d.records, load: errFull}, {Store: d.records, begin: errFull}} {
			d.Store = store
			_, err := d.do(pay, kept("x"))
			if !errors.Is(err, locker.ErrUnavailable) || !errors.Is(err, errFull) || d.runs != 0 {
				t.Errorf("%v, %d runs", err, d.runs)
			}
		}
	})
}

func TestDoneWorkIsAnsweredAlthoughItsAnswerCannotBeStored(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		d.Store = failing{Store: d.records, save: errFull}
		answer, err := d.do(pay, kept("first"))
		if !errors.Is(err, idempotency.ErrNotStored) || !errors.Is(err, errFull) || string(answer.Response.Body) != "first" {
			t.Errorf("%+v, %v", answer, err)
		}
	})
}

// database is a Transactor in memory. What a transaction saves is visible only after the commit.
type database struct {
	idempotency.Store
	begin, commit error
	committed     int
	rolledBack    int
}

type txKey struct{}

type transaction struct{ swaps []func() error }

func (s *database) Swap(ctx context.Context, key string, old, next idempotency.Record, d time.Duration) (idempotency.Record, error) {
	if tx, ok := ctx.Value(txKey{}).(*transaction); ok {
		tx.swaps = append(tx.swaps, func() error {
			_, err := s.Store.Swap(context.Background(), key, old, next, d)
			return err
		})
		return next, nil
	}
	return s.Store.Swap(ctx, key, old, next, d)
}

func (s *database) Transact(ctx context.Context, work func(context.Context) error) error {
	if s.begin != nil {
		return s.begin
	}
	tx := &transaction{}
	if err := work(context.WithValue(ctx, txKey{}, tx)); err != nil {
		s.rolledBack++
		return err
	}
	if s.commit != nil {
		return s.commit
	}
	s.committed++
	for _, swap := range tx.swaps {
		if err := swap(); err != nil {
			return err
		}
	}
	return nil
}

func TestWorkAndAnswerAreCommittedTogether(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		db := &database{Store: d.records}
		d.Store = db
		answer, err := d.do(pay, kept("first"))
		d.wantBody(answer, err, "first", false, 1)
		answer, err = d.do(pay, kept("second"))
		d.wantBody(answer, err, "first", true, 1)
		if db.committed != 1 || db.rolledBack != 0 {
			t.Errorf("%d commits, %d rollbacks", db.committed, db.rolledBack)
		}
	})
}

func TestFailedWorkIsRolledBackAndItsAnswerStored(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		db := &database{Store: d.records}
		d.Store = db
		out := kept("no such account")
		out.Failed = true
		answer, err := d.do(pay, out)
		d.wantBody(answer, err, "no such account", false, 1)
		if db.committed != 0 || db.rolledBack != 1 {
			t.Errorf("%d commits, %d rollbacks", db.committed, db.rolledBack)
		}
		answer, err = d.do(pay, kept("second"))
		d.wantBody(answer, err, "no such account", true, 1)
	})
}

func TestAFailedCommitIsNoAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		db := &database{Store: d.records, commit: errFull}
		d.Store = db
		if answer, err := d.do(pay, kept("x")); !errors.Is(err, errFull) || answer.Response.Status != 0 {
			t.Errorf("%+v, %v", answer, err)
		}
		db.commit = nil
		answer, err := d.do(pay, kept("second"))
		d.wantBody(answer, err, "second", false, 2)
	})
}

func TestNothingRunsWithoutATransaction(t *testing.T) {
	bubble(t, func(t *testing.T, d *desk) {
		d.Store = &database{Store: d.records, begin: errFull}
		if _, err := d.do(pay, kept("x")); !errors.Is(err, locker.ErrUnavailable) || d.runs != 0 {
			t.Errorf("%v, %d runs", err, d.runs)
		}
		if r := d.record(); r.Run != "" {
			t.Errorf("%+v; want that the Record in progress was removed", r)
		}
	})
}
