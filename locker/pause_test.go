package locker_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

var pauses = flag.Int("pauses", 200, "how often TestAfterAPauseTheContextNeverSaysAlive stops a holder")

// pausedTTL is the TTL of the holders that are stopped.
const pausedTTL = 40 * time.Millisecond

// watcher takes a lock again and again. While it holds the lock, it looks at the context of Run in
// the way that its third argument names. It prints each look that said "alive" although the time of
// the lease was over, and each end of a lease.
var watcher = proc.Register("watcher", func(args []string) {
	addr, key, way := args[0], args[1], args[2]
	l, err := locker.New(redis.NewClient(&redis.Options{Addr: addr}))
	if err != nil {
		panic(err)
	}
	for {
		err := locker.Run(context.Background(), l, locker.Rule{Key: key, TTL: pausedTTL, EndAfter: time.Hour}, func(ctx context.Context) error {
			lease, _ := locker.FromContext(ctx)
			ctx = context.WithValue(ctx, valueKey{}, "v")
			fmt.Println("held")
			for {
				before, now := lease.Expires(), time.Now()
				alive := looks[way](ctx)
				// A renewal that was answered meanwhile has moved the end of the lease.
				if after := lease.Expires(); alive && !now.Before(before) && (!now.Before(after) || context.Cause(ctx) != nil) {
					fmt.Println("alive", now.Sub(before))
				}
				if !alive {
					return nil
				}
			}
		})
		if err != nil && !errors.Is(err, locker.ErrLost) {
			fmt.Println("error", err)
		}
		fmt.Println("ended")
	}
})

// looks are the ways to look at a context. Each reports whether the context is alive.
var looks = map[string]func(ctx context.Context) bool{
	"Err":   func(ctx context.Context) bool { return ctx.Err() == nil },
	"Cause": func(ctx context.Context) bool { return context.Cause(ctx) == nil },
	"Done": func(ctx context.Context) bool {
		select {
		case <-ctx.Done():
			return false
		default:
			return true
		}
	},
	"sleepy": func(ctx context.Context) bool {
		time.Sleep(time.Millisecond) //nolint:forbidigo // the look follows a sleep
		return ctx.Err() == nil
	},
}

// A process that was stopped for longer than its TTL looks at its context when it runs again. The
// holder's goroutine may run before the goroutine that ends the lease. Even then no look says
// "alive".
//
// The holders look without a pause, so this test does not run beside others.
func TestAfterAPauseTheContextNeverSaysAlive(t *testing.T) {
	server := redistest.Start(t)
	for way := range looks {
		t.Run(way, func(t *testing.T) {
			t.Parallel() // with the other ways only: a holder is stopped most of the time
			child := watcher.Start(t, server.Addr(), "paused:"+way, way)
			for range *pauses / len(looks) {
				child.Expect(t, "held")
				child.Pause()
				child.AwaitStop()
				time.Sleep(pausedTTL + 10*time.Millisecond) //nolint:forbidigo // the pause itself
				child.Resume()
				for {
					line := child.Expect(t, "")
					if line == "ended" {
						break
					}
					t.Error(line)
				}
			}
		})
	}
}

// The keeper of the leases does not run while the holder looks: the look itself ends the lease, and
// everything that ends with it.
func TestALookAtTheContextEndsALeaseWhoseTimeIsOver(t *testing.T) {
	for way := range looks {
		t.Run(way, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				l := lockertest.NewLocker(t, store)
				outer := acquire(t, l, locker.Rule{Key: "a", TTL: time.Second, EndAfter: time.Second})
				locker.StopKeeper(l)
				err := locker.Run(outer.Context(), l, locker.Rule{Key: "b"}, func(ctx context.Context) error {
					time.Sleep(time.Until(outer.Expires())) //nolint:forbidigo // in a bubble
					for _, c := range []context.Context{ctx, context.WithValue(ctx, valueKey{}, 1), outer.Context()} {
						if looks[way](c) {
							t.Errorf("a look says that the context is alive")
						}
						if cause := context.Cause(c); !errors.Is(cause, locker.ErrExpired) {
							t.Errorf("the cause is %v", cause)
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				if err := outer.Release(t.Context()); !errors.Is(err, locker.ErrExpired) {
					t.Errorf("the release returned %v", err)
				}
				synctest.Wait()
				nothingLeft(t, store)
			})
		})
	}
}
