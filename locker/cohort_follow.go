package locker

import (
	"errors"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// follow is an acquire that goes out with a release, in one step at the server: a streak is over, and its cohort queues
// again behind all others. It is the next leader's question, and is answered by whoever makes the release.
//
// It is sent once. When the release is repeated, because its first attempt is unclear, the leader has already asked by
// itself, with the same token: a second one could queue a token that was granted meanwhile.
type follow struct {
	claim store.Claim
	there chan struct{} // closed when grant and err are
	grant store.Grant
	err   error
}

// errNotQueued: the hold was not ours to release any more, so nothing was queued with it.
var errNotQueued = errors.New("nothing was queued")

// asksWithRelease reports whether an acquire of key may go out with a release: it can wait in the server's queue, and its
// grant needs no acknowledgement by replicas.
func (e *Engine) asksWithRelease(key string) bool {
	return e.cfg.queue && !e.confirms && (e.post.notifier == nil || e.post.inbox(key) != "")
}

// newFollow makes next, which nobody else touches until its turn comes, ask for the key by a release that is sent now. It is
// nil when the subscription was lost since asksWithRelease: then next asks by itself, at once.
func newFollow(next *acquisition, now time.Time) *follow {
	if next.prepare(); !next.claim.Queue {
		next.turn <- turn{seen: true}
		return nil
	}
	next.token.ask()
	next.first, next.sent = now, now
	next.calls++
	f := &follow{claim: next.claim, there: make(chan struct{})}
	next.turn <- turn{follow: f, seen: true}
	return f
}

// hear answers the question with the answer to the release.
func (f *follow) hear(g store.Grant, err error) {
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

func (f *follow) Answered() <-chan struct{}    { return f.there }
func (f *follow) Answer() (store.Grant, error) { return f.grant, f.err }
func (f *follow) Abandon() (sent bool)         { return true }
