package simulator

import (
	"slices"
	"time"
)

// room has the workers of one process that wait for one key. The workers share one token. When
// the token gets the lease, the workers pass the lease on to each other for a while, without a
// call. A worker that queues by itself has its own room.
type room struct {
	p       *process
	key     int
	alone   bool // each token is for one worker, and reserves one fence
	ttl     time.Duration
	forever bool // the lease is renewed as long as it is held
	waiters []*waiter
	token   *hold // the token that asks for the lease, or holds it, for the workers of the room; nil: there is no such token
}

// waiter is one call of Acquire.
type waiter struct {
	room      *room
	startedAt time.Duration // true time
	noWait    bool
	onLease   func(h *hold)
	onFailure func() // called when the wait ends without a lease: the server is unavailable, or the key is busy and noWait is true
}

const (
	handoffs    = 32
	streakLasts = 10 * time.Millisecond
	// releaseWithin is the longest time for which the next worker waits for the end of a release.
	releaseWithin = 2 * time.Second
)

func (r *room) block() int {
	if r.alone {
		return 1
	}
	return handoffs
}

// join begins the wait of wt in the room.
func (r *room) join(wt *waiter) {
	r.waiters = append(r.waiters, wt)
	r.p.w.recordWait(r.key, wt)
	if r.token == nil {
		r.seek()
	} else if r.p.sub == nil {
		r.p.listen()
	}
}

// leave ends the wait of wt without a lease.
func (r *room) leave(wt *waiter) {
	r.waiters = slices.DeleteFunc(r.waiters, func(o *waiter) bool { return o == wt })
	r.p.w.recordWaitEnd(r.key, wt)
	if len(r.waiters) == 0 && r.token != nil && r.token.state == seeking {
		h := r.token
		r.token = nil
		h.giveUp()
	}
}

// failAll ends all waits in the room without a lease.
func (r *room) failAll() {
	all := r.waiters
	r.waiters, r.token = nil, nil
	for _, wt := range all {
		r.p.w.recordWaitEnd(r.key, wt)
		wt.onFailure()
	}
}

// seek asks for the lease with a new token.
func (r *room) seek() {
	r.token = newHold(r)
	r.token.ask()
}

// serve gives the lease of h to the first waiter of the room. It returns false when the room has
// no waiter.
func (r *room) serve(h *hold) bool {
	if len(r.waiters) == 0 {
		return false
	}
	wt := r.waiters[0]
	r.waiters = r.waiters[1:]
	r.p.w.recordWaitEnd(r.key, wt)
	r.p.w.recordLease(h)
	wt.onLease(h)
	return true
}

// onWorkDone is called when a worker has ended its work under the lease of h. Then the lease
// passes to the next worker of the room, or the process releases it. If workers still wait, they
// ask with a new token when the release has ended.
func (r *room) onWorkDone(h *hold) {
	w := r.p.w
	w.recordEnd(h)
	if len(r.waiters) > 0 && h.mayHandOn() {
		h.used++
		w.note(r.key, r.p, "hands on locally", h.token, int64(h.fence)+int64(h.used))
		r.serve(h)
		return
	}
	if len(r.waiters) == 0 {
		r.token = nil
	} else {
		r.p.schedule(releaseWithin, func() { r.onReleased(h) })
	}
	h.release()
}

// onReleased is called when the release of h has ended, or goes on in the background. If workers
// wait for this, they ask with a new token.
func (r *room) onReleased(h *hold) {
	if r.token != h || h.state == seeking || h.state == held {
		return
	}
	r.token = nil
	switch {
	case len(r.waiters) == 0:
	case r.p.w.omitted == OneHold:
		r.token = newHoldOf(r, h.token)
		r.token.ask()
	default:
		r.seek()
	}
}

// onLoss is called when the lease was lost that a worker of the room held. If workers wait in
// the room, they ask with a new token.
func (r *room) onLoss() {
	r.token = nil
	if len(r.waiters) > 0 {
		r.seek()
	}
}
