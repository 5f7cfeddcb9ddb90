package main

import (
	"context"
	"math/rand/v2"
	"time"
)

// duet is the specification of each of two processes that hand a lock back and forth.
type duet struct {
	Contestant string
	Settings   settings
	Arena      string
	Turn       time.Duration
}

// handOffs are the hand-offs of the lock to one process.
type handOffs struct {
	// for each hand-off: the time from the start of Release in the other process until Lock
	// returned in this process
	Took       []time.Duration
	Acquired   int
	CPU        time.Duration
	Violations int
}

const (
	// glance is the time between two checks of the other process's state. A hand-off usually
	// takes less time, so it has ended before the first check, and the checks do not slow it
	// down.
	glance = time.Millisecond

	// A holder waits until the other process has begun to wait for the lock, and then keeps the
	// lock for a random time between these two durations. After a fixed time, a process that
	// polls might always ask exactly when the lock becomes free.
	shortestHold, longestHold = 2 * time.Millisecond, 6 * time.Millisecond
)

func duetPart(s *stage) error {
	var d duet
	if err := s.read(&d); err != nil {
		return err
	}
	contestant, err := contestantNamed(d.Contestant)
	if err != nil {
		return err
	}
	l, err := contestant.open(d.Settings)
	if err != nil {
		return err
	}
	a, err := openArena(d.Arena)
	if err != nil {
		return err
	}
	if !contestant.noLock {
		if err := warmUp(l, 1); err != nil {
			return err
		}
	}
	s.say("ready", nil)
	start, err := s.awaitStart()
	if err != nil {
		return err
	}
	sleepUntil(start)
	done, err := d.play(l, a)
	if err != nil {
		return err
	}
	s.say("done", done)
	return nil
}

// play passes the lock back and forth with the other process until the turn is over.
func (d duet) play(l locks, a *arena) (done handOffs, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer time.AfterFunc(d.Turn, cancel).Stop()
	cpu, err := ownCPU()
	if err != nil {
		return done, err
	}
	me, other := d.Settings.Process, 1-d.Settings.Process
	for ctx.Err() == nil {
		a.waiting[me].Store(true)
		h, err := l.Lock(ctx, "handed")
		now := monotonic()
		a.waiting[me].Store(false)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return done, err
		}
		if a.releasedBy.Load() == int64(other)+1 {
			done.Took = append(done.Took, now-time.Duration(a.releasedAt.Load()))
		}
		done.Acquired++
		turnOf := a.acquired.Add(1)

		done.Violations += a.enter(h)
		pollUntil(ctx, func() bool { return a.waiting[other].Load() })
		time.Sleep(shortestHold + rand.N(longestHold-shortestHold))
		done.Violations += a.leave()

		a.releasedBy.Store(int64(me) + 1)
		a.releasedAt.Store(int64(monotonic()))
		if err := h.Release(context.Background()); err != nil && ctx.Err() == nil {
			return done, err
		}
		// Wait until the other process has the lock. If this process asked again at once, it could
		// overtake the other process.
		pollUntil(ctx, func() bool { return a.acquired.Load() > turnOf })
	}
	after, err := ownCPU()
	done.CPU = after - cpu
	return done, err
}

// pollUntil calls cond again and again, until cond returns true or ctx ends.
func pollUntil(ctx context.Context, cond func() bool) {
	for look := time.NewTicker(glance); ; {
		select {
		case <-look.C:
			if cond() {
				look.Stop()
				return
			}
		case <-ctx.Done():
			look.Stop()
			return
		}
	}
}
