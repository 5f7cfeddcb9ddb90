package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
)

// crew is the specification of a process with workers. Each worker acquires and releases locks
// again and again until the turn ends.
type crew struct {
	Contestant string
	Settings   settings
	Workers    int
	Key        string // the key of all workers; "": each worker has its own key
	Rotate     bool   // true: each worker has many keys, and locks one after the other
	Shared     int    // all workers want this many keys, each worker in an order of its own; 0: all want Key
	Arena      string
	Turn       time.Duration
}

// work is what the workers of one process have done.
type work struct {
	Counts     []int     // number of acquisitions of each worker
	Waits      histogram // how long workers waited for the lock; the end of the turn cuts off each worker's last wait
	Whole      histogram // how long an acquire and its release took together
	CPU        time.Duration
	Mallocs    uint64
	Violations int
}

func crewPart(s *stage) error {
	var c crew
	if err := s.read(&c); err != nil {
		return err
	}
	contestant, err := contestantNamed(c.Contestant)
	if err != nil {
		return err
	}
	l, err := contestant.open(c.Settings)
	if err != nil {
		return err
	}
	a, err := openArena(c.Arena)
	if err != nil {
		return err
	}
	if err := warmUp(l, c.Workers); err != nil {
		return err
	}
	s.say("ready", nil)
	start, err := s.awaitStart()
	if err != nil {
		return err
	}
	done, err := c.run(l, a, start)
	if err != nil {
		return err
	}
	s.say("done", done)
	return nil
}

// warmUp opens connections, loads scripts, and lets the heap grow to its final size. It locks
// other keys than the workers lock later.
func warmUp(l locks, workers int) error {
	return together(workers, func(i int) error {
		key := fmt.Sprintf("warm:%d:%d", os.Getpid(), i)
		var err error
		// several tries, because an acquire of rueidislock may hang although the key is free:
		// see lock_rueidis.go
		for range 20 {
			if err = tryOut(l, key); err == nil {
				return nil
			}
		}
		return err
	})
}

func tryOut(l locks, key string) error {
	for range 3 {
		ctx, cancel := context.WithCancel(context.Background())
		giveUp := time.AfterFunc(time.Second, cancel)
		h, err := l.Lock(ctx, key)
		if err == nil {
			err = h.Release(context.Background())
		}
		giveUp.Stop()
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// together calls f with 0 to n-1, each in a goroutine of its own, and returns the first error.
func together(n int, f func(i int) error) error {
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- f(i) }()
	}
	var first error
	for range n {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (c crew) run(l locks, a *arena, start time.Duration) (work, error) {
	workers := make([]worker, c.Workers)
	for i := range workers {
		key := c.Key
		if key == "" {
			key = "own:" + strconv.Itoa(i)
		}
		workers[i] = worker{locks: l, keys: []string{key}, arena: a, alone: c.Key == ""}
		for n := range rotation {
			if c.Rotate {
				workers[i].keys = append(workers[i].keys, key+":"+strconv.Itoa(n))
			}
		}
	}
	c.share(workers)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	begin := make(chan time.Time)
	var working sync.WaitGroup
	for i := range workers {
		working.Go(func() { workers[i].work(ctx, <-begin) })
	}

	sleepUntil(start)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, err := ownCPU()
	if err != nil {
		return work{}, err
	}
	end := time.Now().Add(c.Turn)
	defer time.AfterFunc(c.Turn, cancel).Stop()
	for range workers {
		begin <- end
	}
	working.Wait()
	used, err := ownCPU()
	if err != nil {
		return work{}, err
	}
	runtime.ReadMemStats(&after)

	done := work{CPU: used - cpu, Mallocs: after.Mallocs - before.Mallocs}
	for _, w := range workers {
		if w.err != nil {
			return work{}, w.err
		}
		done.Counts = append(done.Counts, w.count)
		done.Waits.merge(w.waits)
		done.Whole.merge(w.whole)
		done.Violations += w.violations
	}
	return done, nil
}

// share gives the same keys to all workers, to each worker in an order of its own.
func (c crew) share(workers []worker) {
	if c.Shared == 0 {
		return
	}
	all := make([]string, c.Shared)
	for i := range all {
		all[i] = "shared:" + strconv.Itoa(i)
	}
	for i := range workers {
		workers[i].keys = slices.Clone(all)
		rand.Shuffle(len(all), func(a, b int) {
			workers[i].keys[a], workers[i].keys[b] = workers[i].keys[b], workers[i].keys[a]
		})
	}
}

// rotation is the number of keys that a worker uses one after the other. With so many keys, the
// release of a key ends long before the worker uses the key again.
const rotation = 256

// worker is one goroutine that acquires and releases. No other goroutine uses its fields during
// the turn.
type worker struct {
	locks locks
	keys  []string // the worker locks these keys one after the other
	alone bool     // true: no other worker wants the keys, so the worker does not use the arena
	arena *arena

	count      int
	violations int
	waits      histogram
	whole      histogram
	err        error
}

// work acquires and releases locks, and counts those that it has released before end. The
// critical section does no work, so the figures show only the cost of the lock. If the end of
// the turn cuts off a wait, the time that the worker has waited until then counts. Without this
// rule, a worker that never gets the lock would not appear in the figures.
func (w *worker) work(ctx context.Context, end time.Time) {
	runner, runs := w.locks.(runner)
	for n := 0; ; n++ {
		key := w.keys[n%len(w.keys)]
		asked := time.Now()
		if runs && w.alone {
			err := runner.Run(ctx, key, func() { w.waits.add(time.Since(asked)) })
			released := time.Now()
			if !released.Before(end) {
				return
			}
			if err != nil {
				w.err = err
				return
			}
			w.whole.add(released.Sub(asked))
			w.count++
			continue
		}
		h, err := w.locks.Lock(ctx, key)
		w.waits.add(time.Since(asked))
		if err != nil {
			if ctx.Err() == nil {
				w.err = err
			}
			return
		}
		if !w.alone {
			w.violations += w.arena.enter(h)
			w.violations += w.arena.leave()
		}
		err = h.Release(context.Background())
		released := time.Now()
		if !released.Before(end) {
			return // an error is no failure, because a lock of rueidislock ends with ctx
		}
		if err != nil {
			w.err = err
			return
		}
		w.whole.add(released.Sub(asked))
		w.count++
	}
}
