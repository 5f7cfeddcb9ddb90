package main

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// hoard is the specification of a process that takes many locks and holds them for a while.
type hoard struct {
	Contestant string
	Settings   settings
	Leases     int
	Window     time.Duration
}

// hoarders is the number of goroutines that take and release the locks.
const hoarders = 64

// upkeep is what the held locks cost during the window.
type upkeep struct {
	CPU        time.Duration
	Heap       int64 // Heap, Stack and Goroutines: the increase since before the first lease
	Stack      int64
	Goroutines int
}

// loss counts the locks that were lost before their release.
type loss struct {
	Lost  int
	First string // the error of the first lost lock
}

func hoardPart(s *stage) error {
	var h hoard
	if err := s.read(&h); err != nil {
		return err
	}
	contestant, err := contestantNamed(h.Contestant)
	if err != nil {
		return err
	}
	l, err := contestant.open(h.Settings)
	if err != nil {
		return err
	}
	if err := warmUp(l, hoarders); err != nil {
		return err
	}

	// The bench allocates these slices before the first measurement, so that their memory does
	// not count as memory of the leases.
	keys, holds := make([]string, h.Leases), make([]hold, h.Leases)
	for i := range keys {
		keys[i] = "hoard:" + strconv.Itoa(i)
	}
	before := footprint()
	keeping := newRefreshing(h.Settings.TTL)
	if err := lockAll(l, keys, holds, keeping); err != nil {
		return err
	}

	s.say("held", nil)
	s.await()
	cpu, err := ownCPU()
	if err != nil {
		return err
	}
	time.Sleep(h.Window)
	after, err := ownCPU()
	if err != nil {
		return err
	}
	now := footprint()
	s.say("kept", upkeep{
		CPU: after - cpu, Heap: now.heap - before.heap, Stack: now.stack - before.stack,
		Goroutines: now.goroutines - before.goroutines,
	})

	s.await()
	keeping.stop()
	s.say("released", releaseAll(holds))
	return nil
}

// lockAll locks each key, and puts its hold into holds, at the index of the key. keeping renews the
// holds that their library does not renew.
func lockAll(l locks, keys []string, holds []hold, keeping *refreshLoops) error {
	return together(hoarders, func(worker int) error {
		for i := worker; i < len(keys); i += hoarders {
			h, err := l.Lock(context.Background(), keys[i])
			if err != nil {
				return err
			}
			holds[i] = h
			keeping.add(h)
		}
		return nil
	})
}

type memory struct {
	heap, stack int64
	goroutines  int
}

// footprint collects the garbage, and returns the memory that is then in use.
func footprint() memory {
	for range 2 { // only the second collection empties each sync.Pool
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{int64(m.HeapAlloc), int64(m.StackInuse), runtime.NumGoroutine()}
}

// releaseAll releases holds. It returns how many of the locks had been lost before.
func releaseAll(holds []hold) loss {
	var mu sync.Mutex
	var all loss
	_ = together(hoarders, func(worker int) error {
		for i := worker; i < len(holds); i += hoarders {
			if err := holds[i].Release(context.Background()); err != nil {
				mu.Lock()
				if all.Lost++; all.Lost == 1 {
					all.First = err.Error()
				}
				mu.Unlock()
			}
		}
		return nil
	})
	return all
}

// refreshLoops renew holds whose library does not renew them. Each hold has a goroutine that
// refreshes it three times within the TTL, as users' programs do.
type refreshLoops struct {
	ttl     time.Duration
	ended   chan struct{}
	working sync.WaitGroup
}

func newRefreshing(ttl time.Duration) *refreshLoops {
	return &refreshLoops{ttl: ttl, ended: make(chan struct{})}
}

func (r *refreshLoops) add(h hold) {
	lock, ok := h.(refresher)
	if !ok {
		return
	}
	r.working.Go(func() {
		due := time.NewTicker(r.ttl / 3)
		defer due.Stop()
		for {
			select {
			case <-due.C:
				// After a failed refresh, the loop tries again. A lost lock is counted when it is
				// released.
				_ = lock.Refresh(context.Background(), r.ttl)
			case <-r.ended:
				return
			}
		}
	})
}

func (r *refreshLoops) stop() {
	close(r.ended)
	r.working.Wait()
}
