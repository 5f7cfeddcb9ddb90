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

	mu    sync.Mutex
	nodes []clock
}

// clock is what was measured of one node's clock.
type clock struct {
	offset, slack time.Duration // slack is the largest possible error of the offset
	at            time.Time     // when it was measured; zero: never
}

func newClocks(n int) *clocks { return &clocks{began: time.Now(), nodes: make([]clock, n)} }

// local returns the time by the clock of the process.
func (c *clocks) local() time.Time { return c.began.Add(time.Since(c.began)).Round(0) }

// note records a reading of node i's clock: the clock showed the time server at some moment between
// sentAt and now.
func (c *clocks) note(i int, server time.Time, sentAt time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, k := time.Now(), &c.nodes[i]
	half := now.Sub(sentAt) / 2
	offset := server.Sub(c.local().Add(-half))
	// The earlier offset, if it is more precise, stays, because a late answer must not move the
	// median; unless the two contradict each other, which proves that the clock was set.
	slack := k.slack + now.Sub(k.at)/100
	if !k.at.IsZero() && half > slack && (offset-k.offset).Abs() <= half+slack {
		return
	}
	*k = clock{offset, half, now}
}

// offset returns the last measured distance of node i's clock from the median, and the least
// distance that is possible. Both are 0 for a clock that was never measured.
func (c *clocks) offset(i int) (d, least time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &c.nodes[i]
	if k.at.IsZero() {
		return 0, 0
	}
	d = k.offset - c.median()
	return d, max(d.Abs()-k.slack, 0)
}

// compare returns the time by the median of the nodes' clocks, or, until the first clock is measured,
// by the clock of the process; the nodes whose clocks were measured within skew of the median; and the
// nodes whose clocks are farther from it.
func (c *clocks) compare(skew time.Duration) (now time.Time, near, far nodes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	median := c.median()
	for i, k := range c.nodes {
		switch {
		case k.at.IsZero():
		case (k.offset-median).Abs()-k.slack > skew:
			far = far.plus(i)
		default:
			near = near.plus(i)
		}
	}
	return c.local().Add(median), near, far
}

// median returns the median of the measured offsets. For an even number of offsets, it returns the
// mean of the two offsets in the middle. So if two clocks disagree, the median lies between them.
// The caller holds c.mu.
func (c *clocks) median() time.Duration {
	var room [mostNodes]time.Duration
	sorted := room[:0]
	for _, k := range c.nodes {
		if !k.at.IsZero() {
			sorted = append(sorted, k.offset)
		}
	}
	if len(sorted) == 0 {
		return 0
	}
	slices.Sort(sorted)
	upper := sorted[len(sorted)/2]
	lower := sorted[(len(sorted)-1)/2]
	return lower + (upper-lower)/2
}
