package locker

import "time"

// streaks is the sharing of locks: the callers of a cohort use one hold, one after the other. Each
// has a fence of its own, out of the block of fences of the hold. The streak ends after
// [WithHandoffs] callers or after streakWithin. Then the hold goes back to the server, so that
// other processes have their turn.
type streaks struct{ *cohorts }

// join returns false, because a lock has one user at a time.
func (streaks) join(*cohort, *acquisition) bool { return false }

func (streaks) granted(c *cohort, h *hold) { c.hold, c.sawHolder = h, true }

// release gives h to the next waiter, if the streak may go on.
func (cs streaks) release(c *cohort, h *hold) (passed bool, rest *cohort) {
	if c.hold != h { // h was lost meanwhile, and the cohort has noticed that
		h.ended = true
		return false, nil
	}
	if len(c.waiting) > 0 && cs.mayContinue(h) && cs.engine.keeper.beginHandOff(h) {
		c.next().useHold(h)
		return true, nil
	}
	h.ended = true
	if len(c.waiting) == 0 {
		cs.leadOrEnd(c)
		return false, nil
	}
	c.hold = nil
	return false, c
}

func (streaks) vacate(*cohort) (reusable bool) { return true }

// mayContinue reports whether the streak of h may go on with one more caller.
func (cs *cohorts) mayContinue(h *hold) bool {
	return h.used < h.block && instantOf(time.Now()).sub(h.received) < streakWithin && !cs.engine.isClosing()
}

// user returns the present user of h, or the last user if no caller uses h now. The caller holds
// the cohorts' mutex.
func (h *hold) user() Peer { return peer(h.fence+uint64(max(h.used-1, 0)), h.signed) }
