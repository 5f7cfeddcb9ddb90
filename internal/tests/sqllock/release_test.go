package sqllock_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/sqllock"
)

// gate is a hook that makes a client's calls wait while the gate is shut.
type gate struct {
	shut   atomic.Bool
	opened chan struct{}
	gaveUp atomic.Bool // true: the context of a call has ended while the call waited at the gate
}

func (g *gate) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		g.pass(ctx)
		return next(ctx, cmd)
	}
}

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		g.pass(ctx)
		return next(ctx, cmds)
	}
}

func (g *gate) pass(ctx context.Context) {
	if !g.shut.Load() {
		return
	}
	select {
	case <-g.opened:
	case <-ctx.Done():
		g.gaveUp.Store(true)
	}
}

// With WithBackgroundRelease, a committed transaction needs no answer to its release, because its
// claim has already shown that no newer holder has claimed. After a transaction that has
// failed, Do waits for the answer to the release, and reports the result.
func TestOnlyATransactionThatFailedAwaitsItsRelease(t *testing.T) {
	t.Parallel()
	errOnPurpose := errors.New("on purpose")
	for name, failure := range map[string]error{"committed": nil, "failed": errOnPurpose} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t, sqlite)
			client := redistest.Start(t).Client(t)
			l, err := locker.New(client, locker.WithBackgroundRelease())
			if err != nil {
				t.Fatal(err)
			}
			if err := transact(t.Context(), l, db, account, func(context.Context, *sqllock.Tx) error { return nil }); err != nil {
				// after this call, the Locker has measured that the server answers quickly, and
				// the server knows the scripts
				t.Fatal(err)
			}
			g := &gate{opened: make(chan struct{})}
			client.AddHook(g)
			var began time.Time
			err = transact(t.Context(), l, db, account, func(context.Context, *sqllock.Tx) error {
				g.shut.Store(true)
				began = time.Now()
				return failure
			})
			waited := g.gaveUp.Load()
			if failure != nil { // Do gives up after two seconds, and the gate may hear of it later
				waited = time.Since(began) > time.Second
			}
			close(g.opened)
			if !errors.Is(err, failure) {
				t.Errorf("err = %v", err)
			}
			if want := failure != nil; waited != want {
				t.Errorf("Do has waited for the answer to its release: %v, want %v", waited, want)
			}
			if err := l.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if client.Exists(t.Context(), account.Key).Val() != 0 {
				t.Error("the key is held after Close")
			}
		})
	}
}
