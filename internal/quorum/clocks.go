package quorum

import (
	"slices"
	"sync"
	"time"
)

// clocks knows how the clocks of a quorum's nodes stand to this process's, which is read once and
// then runs by itself: its being set has no effect.
type clocks struct {
	began time.Time

	mu      sync.Mutex
	offsets []time.Duration
	slack   []time.Duration // by how much the offset may be wrong
	at      []time.Time     // when that was found out
	known   []bool
}

func newClocks(n int) *clocks {
	return &clocks{
		began: time.Now(), offsets: make([]time.Duration, n), slack: make([]time.Duration, n),
		at: make([]time.Time, n), known: make([]bool, n),
	}
}

// local is the time of the process.
func (c *clocks) local() time.Time { return c.began.Add(time.Since(c.began)).Round(0) }

// note remembers that node i's clock showed server at some time between sent and now.
func (c *clocks) note(i int, server time.Time, sent time.Time) {
	half := time.Since(sent) / 2
	offset := server.Sub(c.local().Add(-half))
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if aged := now.Sub(c.at[i]) / 100; c.known[i] && half > c.slack[i]+aged {
		return // it says less than what is known: an answer that was late must not move the median
	}
	c.offsets[i], c.slack[i], c.at[i], c.known[i] = offset, half, now, true
}

// now is the time by the median of the nodes' clocks; the process's while none is known.
func (c *clocks) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.local().Add(c.median())
}

// off is how far node i's clock is from the median, at least.
func (c *clocks) off(i int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max((c.offsets[i]-c.median()).Abs()-c.slack[i], 0)
}

// offset is how far node i's clock is from the median, as it was measured last.
func (c *clocks) offset(i int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known[i] {
		return 0
	}
	return c.offsets[i] - c.median()
}

// wrong is the nodes whose clocks are further than skew from the median, while need others are not.
func (c *clocks) wrong(skew time.Duration, need int) (off nodes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	median, right := c.median(), 0
	for i, known := range c.known {
		switch by := (c.offsets[i] - median).Abs() - c.slack[i]; {
		case !known:
		case by > skew:
			off = off.with(i)
		default:
			right++
		}
	}
	if right < need {
		return 0
	}
	return off
}

// median is the middle of what is known: the mean of the two in the middle, so that of two nodes
// that disagree neither is believed. c.mu is held.
func (c *clocks) median() time.Duration {
	var room [mostNodes]time.Duration
	sorted := room[:0]
	for i, offset := range c.offsets {
		if c.known[i] {
			sorted = append(sorted, offset)
		}
	}
	if len(sorted) == 0 {
		return 0
	}
	slices.Sort(sorted)
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return sorted[middle-1] + (sorted[middle]-sorted[middle-1])/2
}
