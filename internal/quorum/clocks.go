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
	skew  time.Duration // the allowed skew between the nodes' clocks
	need  int           // how many nodes are a quorum

	mu         sync.Mutex
	offsets    []time.Duration
	slack      []time.Duration // the largest possible error of each offset
	measuredAt []time.Time     // when each offset was measured
	measured   []bool

	// When a node's clock leaps ahead, either that clock was set, or the clock of this process
	// stood still because the machine was suspended. The next readings of the other nodes' clocks
	// show which. Until then the leap is pending.
	leapt nodes // nodes whose clocks surely have leapt by more than skew
	known nodes // nodes whose clocks had been measured before the first pending leap
	heard nodes // nodes of known whose clocks were read since the first pending leap
	along nodes // nodes of heard whose clocks seem to have moved ahead as well
}

func newClocks(n int, skew time.Duration) *clocks {
	return &clocks{
		began: time.Now(), skew: skew, need: n/2 + 1,
		offsets: make([]time.Duration, n), slack: make([]time.Duration, n),
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
	if c.measured[i] {
		slack := c.slack[i] + now.Sub(c.measuredAt[i])/100 // of the earlier offset, by now
		moved := offset - c.offsets[i]
		if half > slack && moved.Abs() <= half+slack {
			return // the earlier offset is more precise, and a late answer must not move the median
		}
		c.noteMove(i, moved, half+slack)
	}
	c.offsets[i], c.slack[i], c.measuredAt[i], c.measured[i] = offset, half, now, true
}

// noteMove records that node i's clock has moved ahead of the clock of this process since its last
// reading. The measured distance may be wrong by unsure. The caller holds c.mu.
func (c *clocks) noteMove(i int, moved, unsure time.Duration) {
	if moved-unsure > c.skew {
		if c.leapt == 0 {
			c.known, c.heard, c.along = 0, 0, 0
			for j, measured := range c.measured {
				if measured {
					c.known = c.known.plus(j)
				}
			}
		}
		c.leapt = c.leapt.plus(i)
	}
	if !c.known.has(i) {
		return // both readings may be later than the leap, so they show nothing about it
	}
	c.heard = c.heard.plus(i)
	if moved > c.skew/2 {
		c.along = c.along.plus(i)
	}
}

// stepped returns the nodes whose clocks were found wrong since the last call: outliers, and clocks
// that have leapt ahead while other clocks have not. The leap of a quorum of clocks shows that the
// clock of this process stood still. Then earlier offsets are of no use any more.
func (c *clocks) stepped() nodes {
	c.mu.Lock()
	defer c.mu.Unlock()
	far := c.outliersLocked(c.need)
	if c.leapt == 0 {
		return far
	}
	quorum := min(c.need, c.known.count())
	if c.heard.count() < quorum {
		return far &^ (c.leapt | c.known&^c.heard)
	}
	leapt := c.leapt
	c.leapt = 0
	if c.along.count() < quorum {
		return far | leapt
	}
	for i := range c.measured {
		c.measured[i] = c.measured[i] && (c.heard.has(i) || !c.known.has(i))
	}
	return c.outliersLocked(c.need)
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

// outliers returns the nodes whose clocks are further than the allowed skew from the median. A
// clock that was never measured is no outlier.
func (c *clocks) outliers() nodes {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outliersLocked(0)
}

// outliersLocked does the work of outliers for a caller that holds c.mu. If fewer than the number
// "right" of nodes have measured clocks within the allowed skew, it returns no nodes, because it is
// unknown then which clocks are wrong.
func (c *clocks) outliersLocked(right int) (far nodes) {
	median := c.median()
	for i, measured := range c.measured {
		switch {
		case !measured:
		case (c.offsets[i]-median).Abs()-c.slack[i] > c.skew:
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
