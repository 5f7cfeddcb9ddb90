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
	// The earlier offset, if it is more precise, stays, because a late answer must not move the
	// median; unless the two contradict each other, which proves that the clock was set.
	slack := c.slack[i] + now.Sub(c.measuredAt[i])/100
	if c.measured[i] && half > slack && (offset-c.offsets[i]).Abs() <= half+slack {
		return
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

// known reports whether the clocks of at least the given number of nodes were measured.
func (c *clocks) known(need int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, measured := range c.measured {
		if measured {
			need--
		}
	}
	return need <= 0
}

// deviation returns the least possible distance of node i's clock from the median.
func (c *clocks) deviation(i int) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max((c.offsets[i]-c.median()).Abs()-c.slack[i], 0)
}

// outliers returns the nodes whose clocks are further than skew from the median. A clock that was
// never measured is no outlier. If fewer than the number "right" of nodes have measured clocks
// within skew, outliers returns no nodes, because it is unknown then which clocks are wrong.
func (c *clocks) outliers(skew time.Duration, right int) (far nodes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	median := c.median()
	for i, measured := range c.measured {
		switch {
		case !measured:
		case (c.offsets[i]-median).Abs()-c.slack[i] > skew:
			far = far.plus(i)
		default:
			right--
		}
	}
	if right > 0 {
		return 0
	}
	return far
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
