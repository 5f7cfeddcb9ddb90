package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A goroutine with a detached context counts as another caller. It waits until its parent releases
// the lease, and may run longer than its parent.
func TestADetachedGoroutineWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, err := locktest.NewEngine(lockertest.NewMemory().NewProcess())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Close(context.Background()) }()
		type name struct{}
		rule := locker.Rule{Key: "k"}
		later := make(chan error, 1)
		began := time.Now()
		err = locker.Run(context.WithValue(t.Context(), name{}, "value"), e, rule, func(ctx context.Context) error {
			ctx = locker.Detach(ctx)
			if leases := locker.LeasesFromContext(ctx); len(leases) != 0 || ctx.Value(name{}) != "value" {
				t.Error(leases, ctx.Value(name{}))
			}
			go func() {
				later <- locker.Run(ctx, e, rule, func(ctx context.Context) error {
					if time.Since(began) != time.Second {
						t.Error("it got the key after", time.Since(began))
					}
					return ctx.Err()
				})
			}()
			time.Sleep(time.Second)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if err := <-later; err != nil {
			t.Error(err)
		}
	})
}

// When the lease of a context has ended, the context does not count as a holder.
func TestAContextWhoseLeaseHasEndedIsNoHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, err := locktest.NewEngine(lockertest.NewMemory().NewProcess())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Close(context.Background()) }()
		lease := acquire(t, e, locker.Rule{Key: "k"})
		ctx := context.WithoutCancel(lease.Context())
		release(t, lease)
		if err := locker.Run(ctx, e, locker.Rule{Key: "k"}, nothing); err != nil {
			t.Error(err)
		}
	})
}

func nothing(context.Context) error { return nil }
