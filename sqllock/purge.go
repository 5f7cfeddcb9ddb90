package sqllock

import (
	"context"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// Ages has the age at which [Handle.Purge] removes the rows of each table. Zero keeps all rows of
// the table.
type Ages struct {
	// Ledger is the age of operations in the ledger, at least 1 h. [Handle.Resolve] cannot resolve
	// a removed operation. So Ledger must be longer than every transaction, and longer than every
	// delay before a call of Resolve. It is measured by the processes' clocks.
	Ledger time.Duration
	// Operations is the age of the names of [Handle.Operation], at least 1 h. A removed operation
	// can be done again. So give an age after which no caller repeats an operation. It is measured
	// by the database's clock.
	Operations time.Duration
	// Fences is the time for which a resource was not claimed, at least 24 h. It must be longer
	// than every lease and every pause of a process. A service needs Fences if the number of its
	// keys grows without end, for example with a key for each order. It is measured by the
	// database's clock.
	//
	// A removed fence does not let a stale holder claim again: the largest fence that may be
	// removed becomes a floor, and for every resource, claims with a fence up to the floor are
	// refused. A claim under way may still have read the old floor, so a call removes fences only
	// if the floor was raised at least an hour ago. In a daily job, each run therefore removes
	// fences up to the floor that the run on the day before has raised. The floor is smaller than
	// every fence that was claimed within the age, so it does not refuse new leases. If fences of
	// different keys cannot be compared, because a Store does not take them from a clock, nothing
	// is removed.
	//
	// Readers of a key that overlap form a phase, and every reader that enters has the phase's
	// fence. Readers claim nothing. So if a phase stays open for longer than Fences, its readers
	// may be refused until it ends. Give a longer age than any phase of readers, or let a writer of
	// the key in daily: while the writer waits, no reader enters.
	Fences time.Duration
}

// Purge removes the rows that have reached their ages, and the answers of [NewAnswers] whose
// lifetime is over. It returns how many rows it has removed. Run Purge daily.
func (h *Handle[T]) Purge(ctx context.Context, ages Ages) (removed int64, err error) {
	for _, table := range []struct {
		name          string
		age, shortest time.Duration
	}{{"Ledger", ages.Ledger, time.Hour}, {"Operations", ages.Operations, time.Hour}, {"Fences", ages.Fences, 24 * time.Hour}} {
		if table.age != 0 && table.age < table.shortest {
			return 0, fmt.Errorf("%w: sqllock: Purge: an age of %v for %s; give %.0fh or more",
				locker.ErrInvalidRule, table.age, table.name, table.shortest.Hours())
		}
	}
	now := time.Now()
	removed, err = h.forget(ctx, "answer_purge", now.UnixMilli())
	purge := func(age time.Duration, table func() (int64, error)) {
		if age > 0 && err == nil {
			var n int64
			n, err = table()
			removed += n
		}
	}
	purge(ages.Ledger, func() (int64, error) { return h.forget(ctx, "forget", idAt(now.Add(-ages.Ledger))) })
	purge(ages.Operations, func() (int64, error) { return h.forget(ctx, "operations_forget", seconds(ages.Operations)) })
	purge(ages.Fences, func() (int64, error) { return h.purgeFences(ctx, ages.Fences) })
	return removed, err
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }

// forget runs the named statement, which removes the rows that are older than its parameter older.
func (b *base) forget(ctx context.Context, statement string, older any) (removed int64, err error) {
	err = b.persistTx(ctx, func(tx Transaction) (err error) {
		removed, err = tx.Exec(ctx, b.stmts[statement], older)
		return err
	})
	return removed, err
}

// persistTx runs work in a separate transaction, which it repeats as persist does.
func (b *base) persistTx(ctx context.Context, work func(tx Transaction) error) error {
	return b.persist(ctx, func() error { return b.inSeparateTx(ctx, work) })
}

// ripeAfter is how old a floor must be before fences below it are removed. After this time, no
// claim that has read an older floor is still running.
const ripeAfter = time.Hour

// purgeFences removes the fences below the floor that were not claimed for age. Then it raises the
// floor to the largest fence that the next call may remove.
func (b *base) purgeFences(ctx context.Context, age time.Duration) (removed int64, err error) {
	var floor int64
	if err := b.persistTx(ctx, func(tx Transaction) error {
		return tx.Row(ctx, b.stmts["floor"], []any{seconds(ripeAfter)}, &floor)
	}); err != nil {
		return 0, err
	}
	for last := ""; floor > 0; {
		n, page, gone := 0, last, int64(0)
		if err := b.persistTx(ctx, func(tx Transaction) error {
			err := tx.Row(ctx, b.stmts["fences_page"], []any{last, floor, seconds(age)}, &n, &page)
			if err != nil || n == 0 {
				return err
			}
			gone, err = tx.Exec(ctx, b.stmts["fences_forget"], last, page, floor, seconds(age))
			return err
		}); err != nil {
			return removed, err
		}
		if n == 0 {
			break
		}
		removed, last = removed+gone, page
	}
	return removed, b.persistTx(ctx, func(tx Transaction) error {
		var next int64
		if err := tx.Row(ctx, b.stmts["floor_next"], []any{seconds(age), seconds(age)}, &next); err != nil || next <= 0 {
			return err
		}
		args := []any{next}
		if b.dialect == MySQL {
			args = []any{next, next, next}
		}
		_, err := tx.Exec(ctx, b.stmts["floor_raise"], args...)
		return err
	})
}
