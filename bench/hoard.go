package main

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// hoard is what a process is told that takes many locks and keeps them.
type hoard struct {
	Contestant string
	Settings   settings
	Leases     int
	Window     time.Duration
}

// hoarders is how many goroutines take and release them.
const hoarders = 64

// upkeep is what keeping them costs, over the window.
type upkeep struct {
	CPU        time.Duration
	Heap       int64 // all of these are what there is more than before the first lease
	Stack      int64
	Goroutines int
}

// loss is what was not held any more when it was released.
type loss struct {
	Lost  int
	First string // why, for the first of them
}

func hoardPart(s *stage) error {
	var h hoard
	if err := s.read(&h); err != nil {
		return err
	}
	contestant, err := named(h.Contestant)
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

	// What the bench itself needs for each lease is there before we look.
	keys, held := make([]string, h.Leases), make([]hold, h.Leases)
	for i := range keys {
		keys[i] = "hoard:" + strconv.Itoa(i)
	}
	before := footprint()
	keeping := newRefreshing(h.Settings.TTL)
	err = together(hoarders, func(worker int) error {
		for i := worker; i < h.Leases; i += hoarders {
			h, err := l.Lock(context.Background(), keys[i])
			if err != nil {
				return err
			}
			held[i] = h
			keeping.add(h)
		}
		return nil
	})
	if err != nil {
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
	s.say("released", releaseAll(held))
	return nil
}

type memory struct {
	heap, stack int64
	goroutines  int
}

// footprint is what is in use, not what is left for the collector.
func footprint() memory {
	for range 2 { // a pool is emptied by the second
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return memory{int64(m.HeapAlloc), int64(m.StackInuse), runtime.NumGoroutine()}
}

func releaseAll(held []hold) loss {
	var mu sync.Mutex
	var all loss
	_ = together(hoarders, func(worker int) error {
		for i := worker; i < len(held); i += hoarders {
			if err := held[i].Release(context.Background()); err != nil {
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

// refreshing keeps holds alive that nobody else does, as their users have to: a
// goroutine each, which refreshes three times within the TTL.
type refreshing struct {
	ttl     time.Duration
	ended   chan struct{}
	working sync.WaitGroup
}

func newRefreshing(ttl time.Duration) *refreshing {
	return &refreshing{ttl: ttl, ended: make(chan struct{})}
}

func (r *refreshing) add(h hold) {
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
				// One that fails is followed by others; a lock that is lost shows when it is
				// released.
				_ = lock.Refresh(context.Background(), r.ttl)
			case <-r.ended:
				return
			}
		}
	})
}

func (r *refreshing) stop() {
	close(r.ended)
	r.working.Wait()
}
