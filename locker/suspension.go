package locker

import (
	"slices"
	"time"
)

// When a paused process continues, it notices at once which deadlines have passed, because the
// monotonic clock ran on during the pause. But during a suspension of the machine (a closed laptop,
// a virtual machine that is saved and restored), the monotonic clock stands still. So all deadlines
// of this process come late by the length of the suspension. The wall clock shows the suspension by
// a jump ahead.
const (
	// looksForSuspension is how often the clocks are compared while there are holds.
	looksForSuspension = time.Second
	// The machine counts as suspended if the wall clock gains at least suspendedFor between two
	// looks. A clock that is adjusted slowly gains less than a millisecond.
	suspendedFor = 500 * time.Millisecond
	// answerAfterSuspension is the longest wait for the answer to a renewal after a suspension that
	// may have been as long as the rest of the lease.
	answerAfterSuspension = time.Second
)

// clocks compares the wall clock with the monotonic clock.
type clocks struct {
	wallLead time.Duration // the result of leadAt at the last look
	testLead time.Duration // for tests: how far the wall clock was set forward
	testFrom instant       // for tests: when it was set forward
}

// leadAt returns how far the wall clock was ahead of the monotonic clock when t was read.
func (c *clocks) leadAt(t time.Time) time.Duration {
	lead := t.Round(0).Sub(epoch.Round(0)) - t.Sub(epoch)
	if instantOf(t) >= c.testFrom {
		lead += c.testLead
	}
	return lead
}

// gained returns how much the wall clock has gained between two times. It is 0 unless the machine
// was suspended or the clock was set forward.
func (c *clocks) gained(from, to time.Time) time.Duration { return jump(c.leadAt(to) - c.leadAt(from)) }

// look compares the clocks at the time now. It returns how much the wall clock has gained since the
// last look.
func (c *clocks) look(now time.Time) time.Duration {
	last := c.wallLead
	c.wallLead = c.leadAt(now)
	return jump(c.wallLead - last)
}

// jump returns gain, or 0 if the gain is too small for a suspension.
func jump(gain time.Duration) time.Duration {
	if gain < suspendedFor {
		return 0
	}
	return gain
}

// lookForSuspension compares the clocks at the time now, and adjusts the holds in the schedule if
// the machine was suspended. The caller holds k.mu.
func (k *keeper) lookForSuspension(now time.Time) {
	gain := k.clocks.look(now)
	if gain == 0 {
		return
	}
	for _, h := range slices.Collect(k.due.holds()) {
		h.handleSuspension(instantOf(now), gain)
		k.due.reschedule(h)
	}
	k.wakeRun()
}

// handleSuspension is called when the wall clock has gained the time gain since h was granted. The
// caller holds the keeper's mutex, and reschedules h.
func (h *hold) handleSuspension(now instant, gain time.Duration) {
	h.renewal.deadline.store(h.endAfterSuspension(h.renewal.deadline.load(), now, gain))
	if !h.renewal.final {
		h.renewal.renewAt, h.renewal.doubtful = now, true
	}
}

// endAfterSuspension returns the deadline that replaces end when the wall clock has gained the time
// gain, which is missing in the monotonic clock. This may also mean that the clock was set forward,
// so a lease with renewals has time for the answer to one.
func (h *hold) endAfterSuspension(end, now instant, gain time.Duration) instant {
	if h.renewal.final {
		return end.plus(-gain)
	}
	return max(end.plus(-gain), min(end, now.plus(answerAfterSuspension)))
}
