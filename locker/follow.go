package locker

import (
	"errors"
	"time"
)

// follow is an acquire that goes out with a release, in one step at the server: a streak is over, and its cohort queues
// again behind all others. It is the next leader's question, and is answered by whoever makes the release.
//
// It is sent once. When the release is repeated, because its first attempt is unclear, the leader has already asked by
// itself, with the same token: a second one could queue a token that was granted meanwhile.
type follow struct {
	claim Claim
	there chan struct{} // closed when grant and err are
	grant Grant
	err   error
}

// errNotQueued: the hold was not ours to release any more, so nothing was queued with it.
var errNotQueued = errors.New("nothing was queued")

// newFollow makes next, which nobody else touches until its turn comes, ask for the key by a release that is sent now. Where
// it could not wait in the queue, or its grant must be acknowledged by replicas, there is none, and next is still to be told.
func newFollow(next *acquisition, now time.Time) *follow {
	if next.engine.cfg.acks.asked {
		return nil
	}
	if next.prepare(); !next.claim.Queue {
		return nil
	}
	next.known, next.first, next.sent = true, now, now
	next.calls++
	f := &follow{claim: next.claim, there: make(chan struct{})}
	next.turn <- turn{follow: f, seen: true}
	return f
}

// hear answers the question with the answer to the release.
func (f *follow) hear(g Grant, err error) {
	switch {
	case err != nil:
		f.err = err
	case g.Next != nil:
		f.grant = *g.Next
	default:
		f.err = errNotQueued
	}
	close(f.there)
}

func (f *follow) heard() <-chan struct{} { return f.there }
func (f *follow) answer() (Grant, error) { return f.grant, f.err }
func (f *follow) abandon()               {}
