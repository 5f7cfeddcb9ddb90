package locker

import (
	"errors"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

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

// follow is an acquire that goes out with a release, in one step at the server. It is used at the
// end of a streak, when the cohort of the hold must queue again behind all other waiters. The
// follow is the question of the cohort's next leader. The caller that releases passes the answer on
// to this leader.
//
// A follow is sent only once, because a second follow could queue a token that was granted
// meanwhile. So if the release is unclear and repeated, the leader asks by itself with the same
// token.
type follow struct {
	calls.Future
	ticket ticket // the ticket of the leader; its claim goes out with the release
}

// errNotQueued is the error of a follow whose release was answered "not ours", because such a
// release queues nothing.
var errNotQueued = errors.New("nothing was queued")

// canFollow reports whether an acquire of key may go out with a release. The Store must be able to
// carry the acquire, the acquire must be able to wait in the server's queue, and the grant must
// need no acknowledgement by replicas.
func (e *Engine) canFollow(key string) bool {
	return e.can.CarriesNext && e.cfg.queue && !e.can.NeedsConfirmation && (e.post.notifier == nil || e.post.inbox(key) != "")
}

// receive gets (g, err), the answer to the release, and takes the answer to the follow from it.
func (f *follow) receive(g store.Grant, err error) {
	switch {
	case err != nil:
		f.Deliver(store.Grant{}, err)
	case g.Next != nil:
		f.Deliver(*g.Next, nil)
	default:
		f.Deliver(store.Grant{}, errNotQueued)
	}
}
