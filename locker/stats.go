package locker

import (
	"math/rand/v2"
	"sync"
	"time"
)

const (
	enoughHolds  = 10   // so many leases of a Name make an estimate
	rememberWell = 16   // about so many of the last ones count
	mostNames    = 1024 // more are not remembered: a Name is meant to have few values
)

// times learns, per Rule.Name, how long leases are held in this process, and how often asking again is worth it.
type holdStats struct {
	mu     sync.Mutex
	byName map[string]*habit
}

// habit is what is known of the leases of one Name.
type habit struct {
	holds int
	mean  time.Duration // of how long they were held, the last ones counting most
	scale float64       // of the mean, as a pause between attempts
}

// held is called when a lease was given up after d.
func (t *holdStats) held(name string, d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.of(name)
	if h == nil {
		return
	}
	h.holds++
	h.mean += (d - h.mean) / time.Duration(min(h.holds, rememberWell))
}

// estimate is how long a lease of that Name will be held; false while too few are known.
func (t *holdStats) estimate(name string) (time.Duration, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.byName[name]
	if h == nil || h.holds < enoughHolds {
		return 0, false
	}
	return h.mean, true
}

// usual is how long leases of that Name were held so far; false while there was none.
func (t *holdStats) usual(name string) (time.Duration, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.byName[name]
	if h == nil || h.holds == 0 {
		return 0, false
	}
	return h.mean, true
}

// polled is called when an attempt after a pause has succeeded or not. The two factors balance when every second one does.
func (t *holdStats) polled(name string, success bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.of(name)
	switch {
	case h == nil:
	case success:
		h.scale = max(h.scale*0.8, 1.0/64)
	default:
		h.scale = min(h.scale/0.8, 64)
	}
}

// advise is the pause before the next attempt; 0 while nothing is known.
func (t *holdStats) advise(name string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.byName[name]
	if h == nil || h.holds == 0 {
		return 0
	}
	return time.Duration(float64(h.mean) * h.scale)
}

// of is the habit of a Name; nil when too many are known. t.mu is held.
func (t *holdStats) of(name string) *habit {
	h := t.byName[name]
	if h == nil && len(t.byName) < mostNames {
		if t.byName == nil {
			t.byName = make(map[string]*habit)
		}
		h = &habit{scale: 0.5} // the one who holds now is half through, on average
		t.byName[name] = h
	}
	return h
}

// bounds are the shortest and the longest of something that adapts.
type bounds struct{ least, most time.Duration }

func (b bounds) sensible() bool {
	return b.least >= time.Millisecond && b.least <= b.most && b.most <= longestTime
}

func (b bounds) clamp(d time.Duration) time.Duration { return min(max(d, b.least), b.most) }

// adaptiveBackoff turns advice into pauses.
type adaptiveBackoff struct{ bounds }

// pause is between half and all of what is advised, so that waiters that were refused together do not come back together.
func (b *adaptiveBackoff) pause(advice time.Duration) time.Duration {
	d := b.clamp(advice)
	return max(d/2+rand.N(d/2+1), b.least)
}
