package sqllock_test

import (
	"context"
	"database/sql"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

// nameless is a Store whose grants have no fences.
type nameless struct{ *lockertest.Memory }

func (s nameless) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	g, err := s.Memory.Acquire(ctx, c)
	g.Fence, g.FenceCount = 0, 0
	return g, err
}

// beginner is a database that calls beforeBegin before each transaction.
type beginner struct {
	sqllock.Beginner
	beforeBegin func()
}

func (b beginner) BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error) {
	b.beforeBegin()
	return b.Beginner.BeginTx(ctx, opts)
}

func (b beginner) Conn(ctx context.Context) (*sql.Conn, error) {
	b.beforeBegin()
	return b.Beginner.Conn(ctx)
}

// plain is a Locker that only acquires.
type plain struct{ locker.Locker }
