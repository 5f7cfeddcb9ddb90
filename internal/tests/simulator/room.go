package simulator

import (
	"slices"
	"time"
)

// room is where the workers of a process wait for one key. The workers share one token. When the
// token gets the lease, the workers pass the lease on to each other for a while, without a call. A
// worker that queues by itself has its own room.
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
	room   *room
	since  time.Duration // true time
	noWait bool
	got    func(h *hold)
	gone   func() // called when the call ends without a lease: the server is unavailable, or the key is busy and the call does not wait
}

const (
	handoffs    = 32
	streakLasts = 10 * time.Millisecond
)

func (r *room) block() int {
	if r.alone {
		return 1
	}
	return handoffs
}

// join begins the wait of a worker in the room.
func (r *room) join(wt *waiter) {
	r.waiters = append(r.waiters, wt)
	r.p.w.waits(r.key, wt)
	if r.token == nil {
		r.seek()
	} else if r.p.sub == nil {
		r.p.listen()
	}
}

// leave ends a wait that got no lease.
func (r *room) leave(wt *waiter) {
	r.waiters = slices.DeleteFunc(r.waiters, func(o *waiter) bool { return o == wt })
	r.p.w.waitsNoMore(r.key, wt)
	if len(r.waiters) == 0 && r.token != nil && r.token.state == seeking {
		h := r.token
		r.token = nil
		h.giveUp()
	}
}

// fail ends all waits in the room.
func (r *room) fail() {
	all := r.waiters
	r.waiters, r.token = nil, nil
	for _, wt := range all {
		r.p.w.waitsNoMore(r.key, wt)
		wt.gone()
	}
}

// seek asks for the lease with a new token.
func (r *room) seek() {
	r.token = newHold(r)
	r.token.ask()
}

// serve gives the lease to the first waiter. It returns false when no waiter is there.
func (r *room) serve(h *hold) bool {
	if len(r.waiters) == 0 {
		return false
	}
	wt := r.waiters[0]
	r.waiters = r.waiters[1:]
	r.p.w.waitsNoMore(r.key, wt)
	r.p.w.believes(h)
	wt.got(h)
	return true
}

// done is called by a worker at the end of its work. Then the lease passes to the next worker of
// the room, or is released. If workers still wait, the release also puts a new token into the
// queue.
func (r *room) done(h *hold) {
	w := r.p.w
	w.believesNoMore(h)
	if len(r.waiters) > 0 && h.mayHandOn() {
		h.used++
		w.note(r.key, r.p, "hands on locally", h.token, int64(h.fence)+int64(h.used))
		r.serve(h)
		return
	}
	var next *hold
	r.token = nil
	switch {
	case len(r.waiters) == 0:
	case r.p.sub == nil: // a process without an inbox gets no grant by message, so its place in the queue would be lost
		defer r.seek()
	case w.without == OneHold:
		next = newHoldOf(r, h.token)
	default:
		next = newHold(r)
	}
	r.token = next
	h.release(next)
}

// lost is called when a lease has ended too early. All waiters of the room then ask with a new
// token.
func (r *room) lost() {
	r.token = nil
	if len(r.waiters) > 0 {
		r.seek()
	}
}
