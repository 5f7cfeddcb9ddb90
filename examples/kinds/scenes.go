package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lead"
	"github.com/latchkit/latchkit/locker/optimistic"
)

// atMostThree runs nine reports, at most three at a time. The limit holds for all processes
// together.
func atMostThree(ctx context.Context, out io.Writer, client *redis.Client, traced locker.Option) error {
	l, err := locker.NewSemaphore(client, 3, traced)
	if err != nil {
		return err
	}
	defer l.Close(ctx)
	var running, most, done atomic.Int64
	err = together(9, func(int) error {
		return locker.Run(ctx, l, locker.Rule{Key: "reports"}, func(context.Context) error {
			n := running.Add(1)
			for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
			}
			time.Sleep(20 * time.Millisecond) // the report
			running.Add(-1)
			done.Add(1)
			return nil
		})
	})
	fmt.Fprintf(out, "A semaphore of 3\n  %d reports were made, at most %d at a time\n", done.Load(), most.Load())
	return err
}

// fewLocks locks twenty customers with four locks. Two customers may have the same lock.
func fewLocks(ctx context.Context, out io.Writer, client *redis.Client, traced locker.Option) error {
	l, err := locker.New(client, traced)
	if err != nil {
		return err
	}
	defer l.Close(ctx)
	striped, err := locker.NewStriped(l, 4)
	if err != nil {
		return err
	}
	var rules []locker.Rule
	for i := range 20 {
		rules = append(rules, locker.Rule{Key: "customer:" + strconv.Itoa(i)})
	}
	return locker.RunAll(ctx, striped, rules, func(ctx context.Context) error {
		held, err := l.Keys(ctx, "stripe:*")
		fmt.Fprintf(out, "Stripes\n  %d customers are held by %d locks\n", len(rules), len(held))
		return err
	})
}

// oneLeader has two candidates. The first candidate leads until it stops. Then the second
// candidate leads.
func oneLeader(ctx context.Context, out io.Writer, client *redis.Client, traced locker.Option) error {
	l, err := locker.New(client, traced)
	if err != nil {
		return err
	}
	defer l.Close(ctx)
	fmt.Fprintln(out, "A leader")
	var last uint64
	candidate := func(name string, leads chan<- string) func(context.Context) error {
		return func(ctx context.Context) error {
			lease, _ := locker.FromContext(ctx)
			fmt.Fprintf(out, "  %s leads; its fence is larger than the last fence: %t\n", name, lease.Fence() > last)
			last = lease.Fence()
			leads <- name
			<-ctx.Done()
			return nil
		}
	}
	leads := make(chan string)
	first, stopFirst := context.WithCancel(ctx)
	second, stopSecond := context.WithCancel(ctx)
	defer stopFirst()
	defer stopSecond()
	var work sync.WaitGroup
	work.Go(func() { _ = lead.Run(first, l, locker.Rule{Key: "cron"}, candidate("the first candidate", leads)) })
	<-leads
	work.Go(func() { _ = lead.Run(second, l, locker.Rule{Key: "cron"}, candidate("the second candidate", leads)) })
	stopFirst()
	<-leads
	stopSecond()
	work.Wait()
	return nil
}

// noLock adds to a counter from fifty goroutines. If two updates conflict, one of them is repeated.
func noLock(ctx context.Context, out io.Writer, client *redis.Client, _ locker.Option) error {
	err := together(50, func(int) error {
		return optimistic.Update(ctx, client, "visits", func(_ context.Context, old []byte) ([]byte, error) {
			n, _ := strconv.Atoi(string(old))
			return strconv.AppendInt(nil, int64(n+1), 10), nil
		})
	})
	fmt.Fprintf(out, "Updates without a lock\n  50 callers count to %s\n", client.Get(ctx, "visits").Val())
	return errors.Join(err, client.Del(ctx, "visits").Err())
}

// noScripts locks on a server that may forbid EVAL.
func noScripts(ctx context.Context, out io.Writer, client *redis.Client, traced locker.Option) error {
	l, err := locker.NewScriptless(client, traced)
	if err != nil {
		return err
	}
	defer l.Close(ctx)
	return locker.Run(ctx, l, locker.Rule{Key: "import"}, func(context.Context) error {
		_, err := l.Acquire(ctx, locker.Rule{Key: "import", Wait: locker.NoWait})
		fmt.Fprintf(out, "A lock without scripts\n  a second caller is refused: %t\n", errors.Is(err, locker.ErrBusy))
		return nil
	})
}

// together calls the function f n times at the same time, and returns all errors.
func together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var work sync.WaitGroup
	for i := range n {
		work.Go(func() { errs[i] = f(i) })
	}
	work.Wait()
	return errors.Join(errs...)
}
