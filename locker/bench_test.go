package locker_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func BenchmarkRunInMemory(b *testing.B) {
	l := lockertest.NewLocker(b, lockertest.NewMemory())
	work := func(context.Context) error { return nil }
	b.ReportAllocs()
	for b.Loop() {
		if err := locker.Run(b.Context(), l, locker.Rule{Key: "bench"}, work); err != nil {
			b.Fatal(err)
		}
	}
}

// Each look at the context of Run compares the deadline with the clock. "plain" is a context of
// context.WithCancel.
func BenchmarkALookAtTheContext(b *testing.B) {
	l := lockertest.NewLocker(b, lockertest.NewMemory())
	plain, cancel := context.WithCancel(b.Context())
	defer cancel()
	_ = locker.Run(b.Context(), l, locker.Rule{Key: "bench", TTL: time.Hour}, func(held context.Context) error {
		for name, ctx := range map[string]context.Context{"plain": plain, "lease": held} {
			for way, look := range looks {
				if way == "sleepy" {
					continue
				}
				b.Run(way+"/"+name, func(b *testing.B) {
					for b.Loop() {
						if !look(ctx) {
							b.Fatal("the context has ended")
						}
					}
				})
			}
		}
		return nil
	})
}

func BenchmarkAcquireRelease(b *testing.B) {
	l, err := locker.New(redistest.Shared(b).Client(b))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		lease, err := l.Acquire(b.Context(), locker.Rule{Key: "bench"})
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// 128 goroutines of one process want one key. In a streak, each goroutine passes the key on to the
// next goroutine, and one waiter queues at the server.
func BenchmarkContendedInProcess(b *testing.B) { contend(b) }

// Each goroutine queues at the server by itself, and gets a message when it is granted the key.
func BenchmarkContendedFair(b *testing.B) { contend(b, locker.WithFair()) }

func contend(b *testing.B, opts ...locker.SingleOption) {
	l, err := locker.New(redistest.Shared(b).Client(b), opts...)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetParallelism(128 / runtime.GOMAXPROCS(0))
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			lease, err := l.Acquire(b.Context(), locker.Rule{Key: "bench:contended"})
			if err != nil {
				b.Error(err)
				return
			}
			if err := lease.Release(b.Context()); err != nil {
				b.Error(err)
				return
			}
		}
	})
	if err := l.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// Each of many callers has a key of its own. The flag -cpu 1,2,… sets how many cores the callers
// have.
func BenchmarkManyCallers(b *testing.B) {
	for _, callers := range []int{1, 8, 64} {
		for name, options := range map[string]func(*redis.Options){"ContextTimeoutEnabled": func(o *redis.Options) { o.ContextTimeoutEnabled = true }, "default options": func(*redis.Options) {}} {
			b.Run(fmt.Sprintf("%d/%s", callers, name), func(b *testing.B) {
				l, err := locker.New(redistest.Shared(b).Client(b, options))
				if err != nil {
					b.Fatal(err)
				}
				var key atomic.Int64
				b.ReportAllocs()
				b.SetParallelism(max(1, callers/runtime.GOMAXPROCS(0)))
				b.RunParallel(func(pb *testing.PB) {
					rule := locker.Rule{Key: fmt.Sprintf("bench:%s:%d", name, key.Add(1))}
					for pb.Next() {
						lease, err := l.Acquire(b.Context(), rule)
						if err == nil {
							err = lease.Release(b.Context())
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
				if err := l.Close(b.Context()); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// This benchmark measures the lowest possible cost of a lock. It uses go-redis alone, without
// fence, renewal and cancellation.
func BenchmarkFloor(b *testing.B) {
	c := redistest.Shared(b).Client(b)
	del := redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)
	b.ReportAllocs()
	for b.Loop() {
		if ok, err := c.SetNX(b.Context(), "floor", "token", 30*time.Second).Result(); err != nil || !ok {
			b.Fatal(ok, err)
		}
		if err := del.Run(b.Context(), c, []string{"floor"}, "token").Err(); err != nil {
			b.Fatal(err)
		}
	}
}
