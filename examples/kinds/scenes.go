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
	fmt.Fprintf(out, "A semaphore of 3\n  %d reports were asked for at once, and at most %d were made at a time\n", done.Load(), most.Load())
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
		fmt.Fprintf(out, "Stripes\n  %d customers are locked by %d keys on the server\n", len(rules), len(held))
		return err
	})
}

// oneLeader has two candidates, the pods A and B. A leads until it stops, and then B.
func oneLeader(ctx context.Context, out io.Writer, client *redis.Client, traced locker.Option) error {
	l, err := locker.New(client, traced)
	if err != nil {
		return err
	}
	defer l.Close(ctx)
	fmt.Fprintln(out, "A leader")
	terms := make(chan uint64)
	candidate := func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		terms <- lease.Fence()
		<-ctx.Done()
		return nil
	}
	podA, stopA := context.WithCancel(ctx)
	podB, stopB := context.WithCancel(ctx)
	defer stopA()
	defer stopB()
	var work sync.WaitGroup
	work.Go(func() { _ = lead.Run(podA, l, locker.Rule{Key: "cron"}, candidate) })
	before := <-terms
	fmt.Fprintln(out, "  pod A leads")
	work.Go(func() { _ = lead.Run(podB, l, locker.Rule{Key: "cron"}, candidate) })
	stopA()
	fence := <-terms
	fmt.Fprintln(out, "  pod A stops, and pod B leads")
	if fence <= before {
		return fmt.Errorf("the term of pod B has the fence %d, and that of pod A had %d", fence, before)
	}
	fmt.Fprintln(out, "  a late write of pod A is refused by a table that has seen the larger fence of pod B")
	stopB()
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
	fmt.Fprintf(out, "Updates without a lock\n  50 callers add 1 each at once; those that met another writer tried again: %s\n", client.Get(ctx, "visits").Val())
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
		fmt.Fprintln(out, "A lock without scripts\n  the first caller imports")
		_, err := l.Acquire(ctx, locker.Rule{Key: "import", Wait: locker.NoWait})
		if !errors.Is(err, locker.ErrBusy) {
			return fmt.Errorf("a second caller was not refused: %w", err)
		}
		fmt.Fprintln(out, "  a second caller does not wait, and learns that the lock is busy")
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
