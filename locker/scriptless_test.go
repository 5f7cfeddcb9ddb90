package locker_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

func newScriptless(t testing.TB, c redis.UniversalClient, opts ...locker.Option) *locker.Engine {
	t.Helper()
	l, err := locker.NewScriptless(c, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

// A lock with scripts and a lock without scripts exclude each other, as the locks of two libraries
// do.
func TestScriptlessAndSingleExcludeEachOther(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	without, with := newScriptless(t, c), newSingle(t, c)
	for i, pair := range [][2]*locker.Engine{{without, with}, {with, without}} {
		key := fmt.Sprint(t.Name(), i)
		held := acquire(t, pair[0], locker.Rule{Key: key, Metadata: "host:7:8:9"})
		_, err := pair[1].Acquire(t.Context(), locker.Rule{Key: key, Wait: locker.NoWait})
		wantErr(t, err, key, locker.ErrBusy)
		if info, err := pair[1].Inspect(t.Context(), key); err != nil || !info.Held || !info.Foreign {
			t.Errorf("to the other kind it is %+v, %v", info, err)
		}
		if info, err := pair[0].Inspect(t.Context(), key); err != nil || !info.Held || info.Foreign || info.Metadata != "host:7:8:9" || info.Left <= 0 {
			t.Errorf("to its own kind it is %+v, %v", info, err)
		}
		waiter := asks(t, pair[1], locker.Rule{Key: key})
		release(t, held)
		release(t, waiter.Granted(0))
	}
}

// OnceFor and KeepFor, for which the server must store data, also work without scripts.
func TestScriptlessRemembersWork(t *testing.T) {
	t.Parallel()
	c := redistest.Shared(t).Client(t)
	one, other := newScriptless(t, c), newScriptless(t, c)
	rule := locker.Rule{Key: t.Name(), Wait: locker.NoWait, OnceFor: time.Minute}
	if err := locker.Run(t.Context(), one, rule, nothing); err != nil {
		t.Fatal(err)
	}
	wantErr(t, locker.Run(t.Context(), other, rule, mustNotRun(t)), rule.Key, locker.ErrDone)
	rule = locker.Rule{Key: t.Name() + ":kept", Wait: locker.NoWait, KeepFor: time.Minute}
	if err := locker.Run(t.Context(), one, rule, nothing); err != nil {
		t.Fatal(err)
	}
	wantErr(t, locker.Run(t.Context(), other, rule, mustNotRun(t)), rule.Key, locker.ErrBusy)
	if info, err := other.Inspect(t.Context(), rule.Key); err != nil || !info.Kept {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestScriptlessRefusesWhatNeedsScripts(t *testing.T) {
	t.Parallel()
	l := newScriptless(t, redistest.Shared(t).Client(t))
	rule := locker.Rule{Key: t.Name(), Mode: locker.Shared}
	if err := locker.Check(l, rule); !errors.Is(err, locker.ErrUnsupported) {
		t.Error(err)
	}
	_, err := l.Acquire(t.Context(), rule)
	wantErr(t, err, rule.Key, locker.ErrUnsupported)
	wantErr(t, l.Revoke(t.Context(), rule.Key, 1, "no"), rule.Key, locker.ErrUnsupported)
	wantErr(t, l.RaiseFence(t.Context(), rule.Key, 1), rule.Key, locker.ErrUnsupported)
	lease := acquire(t, l, locker.Rule{Key: t.Name()})
	if lease.Fence() != 0 {
		t.Errorf("fence %d", lease.Fence())
	}
	release(t, lease)
	for _, c := range []redis.UniversalClient{nil, redis.NewRing(&redis.RingOptions{})} {
		if _, err := locker.NewScriptless(c); err == nil {
			t.Errorf("%T is no client for it", c)
		}
	}
}

// scriptlessProcess holds a key until its parent asks for the release.
var scriptlessProcess = proc.Register("scriptless", func(args []string) {
	l, err := locker.NewScriptless(redis.NewClient(&redis.Options{Addr: args[0]}))
	if err != nil {
		panic(err)
	}
	lease, err := l.Acquire(context.Background(), locker.Rule{Key: args[1], TTL: 2 * time.Second})
	if err != nil {
		panic(err)
	}
	fmt.Println("granted")
	<-lease.Context().Done()
	fmt.Println("lost", errors.Is(context.Cause(lease.Context()), locker.ErrLost))
	_ = lease.Release(context.Background())
	fmt.Println("released")
	proc.Listen()
})

// When a holder is killed or stopped, other callers get the key after the TTL. When a stopped
// holder runs again, it learns of its loss, and changes nothing at the server.
func TestScriptlessHoldersThatDieOrStandStill(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	for _, signal := range []string{"killed", "stopped"} {
		t.Run(signal, func(t *testing.T) {
			t.Parallel()
			child := scriptlessProcess.Start(t, server.Addr(), t.Name())
			child.Expect(t, "granted")
			waiter := asks(t, newScriptless(t, server.Client(t)), locker.Rule{Key: t.Name()})
			if signal == "killed" {
				child.Kill()
			} else {
				child.Pause()
			}
			lease := waiter.Granted(2 * time.Second)
			if signal == "stopped" {
				child.Resume()
				if got := child.Expect(t, "lost"); got != "true" {
					t.Errorf("its lease ended with ErrLost: %s", got)
				}
				child.Expect(t, "released")
			}
			if err := lease.Extend(t.Context(), time.Minute); err != nil {
				t.Errorf("the next holder: %v", err)
			}
			release(t, lease)
		})
	}
}

// Callers of two processes have connections that break all the time. They never hold the key at
// the same time, and no caller hangs.
func TestScriptlessOnConnectionsThatBreak(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	proxy := chaos.NewProxy(t, server.Addr())
	var inside, runs atomic.Int32
	var callers []*locker.Engine
	for range 8 { // made before the faults, because a new client must reach the server first
		callers = append(callers, newScriptless(t, through(t, server, proxy), locker.WithBackoff(locker.Exponential(2*time.Millisecond, 2*time.Millisecond))))
	}
	stop := make(chan struct{})
	broken := make(chan struct{})
	go func() {
		defer close(broken)
		before := runs.Load()
		for pause := 50 * time.Millisecond; ; { // the pauses grow, because on a busy machine a step may not be possible between two cuts
			select {
			case <-stop:
				return
			case <-time.After(pause):
				proxy.Cut()
			}
			if now := runs.Load(); now > before {
				pause, before = 50*time.Millisecond, now
			} else {
				pause = min(2*pause, time.Second)
			}
		}
	}()
	ended := make(chan error, 8)
	for i, l := range callers {
		go func() {
			for range 10 {
				err := locker.Run(t.Context(), l, locker.Rule{Key: t.Name(), TTL: 3 * time.Second, Wait: stuckAfter}, func(ctx context.Context) error {
					if inside.Add(1) != 1 {
						t.Error("two callers hold the key")
					}
					<-time.After(time.Millisecond) // in this time, another caller could come in
					inside.Add(-1)
					runs.Add(1)
					return nil
				})
				if err != nil && !errors.Is(err, locker.ErrUnavailable) {
					ended <- fmt.Errorf("caller %d: %w", i, err)
					return
				}
			}
			ended <- nil
		}()
	}
	for range 8 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-broken
	if runs.Load() < 40 {
		t.Errorf("%d runs of 80", runs.Load())
	}
}
