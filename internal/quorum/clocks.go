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

	mu         sync.Mutex
	offsets    []time.Duration
	slack      []time.Duration // the largest possible error of each offset
	measuredAt []time.Time     // when each offset was measured
	measured   []bool
}

func newClocks(n int) *clocks {
	return &clocks{
		began: time.Now(), offsets: make([]time.Duration, n), slack: make([]time.Duration, n),
		measuredAt: make([]time.Time, n), measured: make([]bool, n),
	}
}

// local returns the time by the clock of the process.
func (c *clocks) local() time.Time { return c.began.Add(time.Since(c.began)).Round(0) }

// note records a reading of node i's clock: the clock showed the time server at some moment between
// sentAt and now.
func (c *clocks) note(i int, server time.Time, sentAt time.Time) {
	half := time.Since(sentAt) / 2
	offset := server.Sub(c.local().Add(-half))
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if aged := now.Sub(c.measuredAt[i]) / 100; c.measured[i] && half > c.slack[i]+aged {
		return // the earlier offset is more precise, and a late answer must not move the median
	}
	c.offsets[i], c.slack[i], c.measuredAt[i], c.measured[i] = offset, half, now, true
}

// now returns the time by the median of the nodes' clocks. Until the first node's clock is
// measured, it returns the time by the clock of the process.
func (c *clocks) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.local().Add(c.median())
}

// deviation returns the least possible distance of node i's clock from the median.
func (c *clocks) deviation(i int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max((c.offsets[i]-c.median()).Abs()-c.slack[i], 0)
}

// outliers returns the nodes whose clocks are further than skew from the median. A clock that was
// never measured is no outlier.
func (c *clocks) outliers(skew time.Duration) (far nodes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outliersLocked(skew)
}

// outliersLocked does the work of outliers for a caller that holds c.mu.
func (c *clocks) outliersLocked(skew time.Duration) (outliersLocked nodes) {
	median := c.median()
	for i, measured := range c.measured {
		if measured && (c.offsets[i]-median).Abs()-c.slack[i] > skew {
			outliersLocked = outliersLocked.plus(i)
		}
	}
	return outliersLocked
}

// offset returns the last measured distance of node i's clock from the median.
func (c *clocks) offset(i int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.measured[i] {
		return 0
	}
	return c.offsets[i] - c.median()
}

// wrongClocks returns the nodes whose clocks are further than skew from the median. If fewer than
// need other nodes have a right clock, it returns no nodes.
func (c *clocks) wrongClocks(skew time.Duration, need int) (far nodes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if far = c.outliersLocked(skew); far == 0 {
		return 0
	}
	right := 0
	for i, measured := range c.measured {
		if measured && !far.has(i) {
			right++
		}
	}
	if right < need {
		return 0
	}
	return far
}

// median returns the median of the measured offsets. For an even number of offsets, it returns the
// mean of the two offsets in the middle. So if two clocks disagree, the median lies between them.
// The caller holds c.mu.
func (c *clocks) median() time.Duration {
	var room [mostNodes]time.Duration
	sorted := room[:0]
	for i, offset := range c.offsets {
		if c.measured[i] {
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
