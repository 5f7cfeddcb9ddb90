package quorum

import (
	"slices"
	"sync"
	"time"
)

// clocks has the offsets of the nodes' clocks from the clock of this process. The clock of this
// process is read once and then advances monotonically, so setting the system's clock has no
// effect.
type clocks struct {
	began time.Time

	mu      sync.Mutex
	offsets []time.Duration
	slack   []time.Duration // largest possible error of each offset
	at      []time.Time     // when the offset was measured
	known   []bool
}

func newClocks(n int) *clocks {
	return &clocks{
		began: time.Now(), offsets: make([]time.Duration, n), slack: make([]time.Duration, n),
		at: make([]time.Time, n), known: make([]bool, n),
	}
}

// local returns the time by the clock of the process.
func (c *clocks) local() time.Time { return c.began.Add(time.Since(c.began)).Round(0) }

// note records a reading of node i's clock: it showed the time "server" at some moment between sent
// and now.
func (c *clocks) note(i int, server time.Time, sent time.Time) {
	half := time.Since(sent) / 2
	offset := server.Sub(c.local().Add(-half))
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if aged := now.Sub(c.at[i]) / 100; c.known[i] && half > c.slack[i]+aged {
		return // the known offset is more precise: a late answer must not move the median
	}
	c.offsets[i], c.slack[i], c.at[i], c.known[i] = offset, half, now, true
}

// now returns the time by the median of the nodes' clocks. While no node's clock is known, it
// returns the time by the clock of the process.
func (c *clocks) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.local().Add(c.median())
}

// off returns the least possible distance of node i's clock from the median.
func (c *clocks) off(i int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max((c.offsets[i]-c.median()).Abs()-c.slack[i], 0)
}

// beyond returns the nodes whose clocks are further than skew from the median.
func (c *clocks) beyond(skew time.Duration) (far nodes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.far(skew)
}

// far is like the method beyond, but for a caller that holds c.mu. A clock that was never measured
// does not count as far.
func (c *clocks) far(skew time.Duration) (far nodes) {
	median := c.median()
	for i, known := range c.known {
		if known && (c.offsets[i]-median).Abs()-c.slack[i] > skew {
			far = far.with(i)
		}
	}
	return far
}

// offset returns the last measured distance of node i's clock from the median.
func (c *clocks) offset(i int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known[i] {
		return 0
	}
	return c.offsets[i] - c.median()
}

// wrong returns the nodes whose clocks are further than skew from the median. If fewer than "need"
// other nodes have a right clock, it returns no nodes.
func (c *clocks) wrong(skew time.Duration, need int) (off nodes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if off = c.far(skew); off == 0 {
		return 0
	}
	right := 0
	for i, known := range c.known {
		if known && !off.has(i) {
			right++
		}
	}
	if right < need {
		return 0
	}
	return off
}

// median returns the median of the known offsets. For an even number of offsets, it returns the
// mean of the two offsets in the middle. So if two clocks disagree, the median lies between them.
// The caller holds c.mu.
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
