package locker

import "time"

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
	// may have been longer than the lease.
	answerAfterSuspension = time.Second
)

// clocks compares the wall clock with the monotonic clock.
type clocks struct {
	wallLead time.Duration // how far the wall clock was ahead of the monotonic clock at the last look
	measured bool
	testLead time.Duration // for tests: how far the wall clock was set forward
}

// gained returns how much the wall clock has gained since the last look, at the time now. It is 0
// unless the machine was suspended or the clock was set forward.
func (c *clocks) gained(now time.Time) time.Duration {
	ahead := now.Round(0).Sub(epoch.Round(0)) - now.Sub(epoch) + c.testLead
	gain := ahead - c.wallLead
	if c.wallLead = ahead; !c.measured || gain < suspendedFor {
		c.measured = true
		return 0
	}
	return gain
}

// handleSuspension is called when the wall clock has gained the time gain. This may also mean that
// the clock was set forward, so a lease with renewals is not given up at once. Instead it is
// renewed immediately, and ends soon if no answer comes. A lease without renewals ends earlier by
// the gained time. The caller holds k.mu.
func (k *keeper) handleSuspension(now instant, gain time.Duration) {
	var all []*hold
	for h := range k.due.holds() {
		all = append(all, h)
	}
	for _, h := range all {
		switch left := h.renewal.deadline.load().sub(now); {
		case h.renewal.final:
			h.renewal.deadline.store(h.renewal.deadline.load().plus(-gain))
		case left <= gain:
			h.renewal.deadline.store(min(h.renewal.deadline.load(), now.plus(answerAfterSuspension)))
			h.renewal.renewAt = now
		default:
			h.renewal.renewAt = now
		}
		k.due.reschedule(h)
	}
}
