package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// frozen is a Store that answers no call while active is true. Its calls wait for thaw, and
// ignore their contexts.
type frozen struct {
	store.Store
	active atomic.Bool
	thaw   chan struct{}
}

func (f *frozen) hang() {
	if f.active.Load() {
		<-f.thaw
	}
}

func (f *frozen) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	f.hang()
	return f.Store.Acquire(ctx, c)
}

func (f *frozen) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	f.hang()
	return f.Store.Renew(ctx, cs)
}

func (f *frozen) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	f.hang()
	return f.Store.Release(ctx, c)
}

// On the virtual clock, a call at a Store that hangs returns exactly when its context, its Wait
// or its own time-out ends. So nothing else delays the call, not even by a microsecond.
func TestACallerIsBackInTheInstantInWhichItsTimeIsOver(t *testing.T) {
	t.Parallel()
	const patience = 100 * time.Millisecond
	for name, tt := range map[string]struct {
		do   func(ctx context.Context, e *locker.Engine, held *locker.Lease) error
		want error
		took time.Duration
	}{
		"Acquire, ctx": {func(ctx context.Context, e *locker.Engine, _ *locker.Lease) error {
			_, err := e.Acquire(ctx, locker.Rule{Key: "free"})
			return err
		}, context.DeadlineExceeded, patience},
		"Acquire, Wait": {func(_ context.Context, e *locker.Engine, _ *locker.Lease) error {
			_, err := e.Acquire(context.Background(), locker.Rule{Key: "free", Wait: patience})
			return err
		}, locker.ErrUnavailable, patience},
		"Acquire, behind a holder of this process": {func(ctx context.Context, e *locker.Engine, _ *locker.Lease) error {
			_, err := e.Acquire(ctx, locker.Rule{Key: "held"})
			return err
		}, context.DeadlineExceeded, patience},
		"Acquire, ended before": {func(_ context.Context, e *locker.Engine, _ *locker.Lease) error {
			ended, end := context.WithCancel(context.Background())
			end()
			_, err := e.Acquire(ended, locker.Rule{Key: "free"})
			return err
		}, context.Canceled, 0},
		"RunAll": {func(ctx context.Context, e *locker.Engine, _ *locker.Lease) error {
			return locker.RunAll(ctx, e, []locker.Rule{{Key: "free"}, {Key: "free2"}}, func(context.Context) error { return nil })
		}, context.DeadlineExceeded, patience},
		"Extend": {func(ctx context.Context, _ *locker.Engine, held *locker.Lease) error {
			return held.Extend(ctx, time.Hour)
		}, context.DeadlineExceeded, patience},
		"Release": {func(_ context.Context, _ *locker.Engine, held *locker.Lease) error {
			return held.Release(context.Background())
		}, locker.ErrUnavailable, 2 * time.Second},
		"Close": {func(ctx context.Context, e *locker.Engine, held *locker.Lease) error {
			go func() { _ = held.Release(context.Background()) }()
			synctest.Wait()
			return e.Close(ctx)
		}, context.DeadlineExceeded, patience},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &frozen{Store: lockertest.NewMemory().NewProcess(), thaw: make(chan struct{})}
				e, err := locktest.NewEngine(f)
				if err != nil {
					t.Fatal(err)
				}
				held := acquire(t, e, locker.Rule{Key: "held", TTL: time.Minute})
				f.active.Store(true)
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				began := time.Now()
				if err := tt.do(ctx, e, held); !errors.Is(err, tt.want) {
					t.Errorf("ended with %v, want %v", err, tt.want)
				}
				if took := time.Since(began); took != tt.took {
					t.Errorf("back after %v, want %v", took, tt.took)
				}
				f.active.Store(false)
				close(f.thaw)
				ctx, end := context.WithTimeout(context.Background(), time.Minute)
				defer end()
				_ = e.Close(ctx)
			})
		})
	}
}
