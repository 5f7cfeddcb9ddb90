package locker

import (
	"errors"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/locker/store"
)

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
	claim store.Claim
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

// newFollow returns the follow for a release that is sent at the time now. The follow asks for the
// key on behalf of next. If the subscription was lost after the call of canFollow, newFollow
// returns nil, and next asks by itself at once.
func newFollow(next successor, now time.Time) *follow {
	a := next.waiter
	if a.prepare(); !a.ticket.claim.Queue {
		next.serve(turn{sawHolder: true})
		return nil
	}
	a.ticket.token.ask()
	a.ticket.firstSent, a.ticket.sentAt = now, now
	a.waiting.calls++
	f := &follow{claim: a.ticket.claim}
	next.serve(turn{follow: f, sawHolder: true})
	return f
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
