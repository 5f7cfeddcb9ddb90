package sqllock_test

import (
	"context"
	"database/sql"
	"sync/atomic"
	"testing"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/sqllock"
)

// losing is a Store whose releases report that the lease was lost.
type losing struct {
	*lockertest.Memory
	reportedLost atomic.Bool
}

func newLosing() *losing { return &losing{Memory: lockertest.NewMemory()} }

func (s *losing) locker(t testing.TB) *locker.Engine { return lockertest.NewLocker(t, s) }

func (s *losing) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	if g, err := s.Memory.Release(ctx, c); err != nil {
		return g, err
	}
	s.reportedLost.Store(true)
	return store.Grant{State: store.NotOurs}, nil
}

// nameless is a Store whose grants have no fences.
type nameless struct{ *lockertest.Memory }

func (s nameless) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	g, err := s.Memory.Acquire(ctx, c)
	g.Fence, g.FenceCount = 0, 0
	return g, err
}

func fenceless(t testing.TB) *locker.Engine {
	t.Helper()
	return lockertest.NewLocker(t, nameless{lockertest.NewMemory()}, locker.WithHandoffs(1))
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

// holding is a Locker whose Acquire returns a lease that the test already has.
type holding struct{ lease *locker.Lease }

func (h holding) Acquire(context.Context, locker.Rule) (*locker.Lease, error) { return h.lease, nil }

// lockedBy returns a context that has lease. The context lasts until the end of the test.
func lockedBy(t testing.TB, lease *locker.Lease) context.Context {
	t.Helper()
	found := make(chan context.Context)
	over := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = locker.Run(context.WithoutCancel(t.Context()), holding{lease}, account, func(ctx context.Context) error {
			found <- ctx
			<-over
			return nil
		})
	}()
	t.Cleanup(func() { close(over); <-done })
	return <-found
}
