package locker

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// keeper renews all holds of an Engine and ends those whose time is over: one goroutine over a heap of due times,
// whatever the number of holds. It never waits for the server itself: batches go out in goroutines of their own, so a
// deadline fires in time while a call hangs. A hold whose renewal is not answered is simply due again a little later;
// a renewal that is executed twice does no harm.
type keeper struct {
	engine *Engine

	mu      sync.Mutex
	due     schedule
	pending []*hold   // to be renewed, each once
	senders int       // goroutines that renew what is pending
	sent    time.Time // when the last of them took a batch
	running bool
	stopped bool
	wake    chan struct{} // an earlier time than the one that run sleeps for
	next    time.Time     // what run sleeps for
	ended   chan struct{} // closed when run has returned
}

const (
	renewBatch  = 100                   // holds per call
	renewCalls  = 8                     // calls under way, at most
	senderHangs = 20 * time.Millisecond // so long after the last call began, another one may
	renewSlack  = 10 * time.Millisecond // what is due this soon goes into the same batch
	callTimeout = 5 * time.Second       // of calls in the background
)

func (k *keeper) init(e *Engine) {
	k.engine = e
	k.wake = make(chan struct{}, 1)
	k.ended = make(chan struct{})
}

// add takes a new hold into care, which lease uses, unless the Engine is closing.
func (k *keeper) add(h *hold, lease *Lease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.engine.isClosing() {
		return false
	}
	h.lease = lease
	k.plan(h, h.since, h.each)
	if h.handed > 0 { // soon: until then the server keeps it for that long only
		h.renew = h.since.Add(h.handed / 8)
	}
	heap.Push(&k.due, h)
	if !k.running {
		k.running = true
		go k.run()
	}
	k.rouse()
	return true
}

// pass takes a hold from the Lease that used it, for another one, if it is sound and has enough of its time left.
func (k *keeper) pass(h *hold) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !h.sound() || h.joinable || h.claim.Fence != 0 { // it was delegated, or is being downgraded
		return false
	}
	if h.lease = nil; !h.adaptive {
		h.each = h.ttl
	}
	return true
}

// sound says whether a hold is worth passing on or sharing; the keeper's mutex is held.
func (h *hold) sound() bool {
	whole := h.ttl
	if h.handed > 0 {
		whole = h.handed
	}
	extended := h.longest > h.ttl && !h.adaptive
	return h.index > 0 && h.failure == nil && !extended && time.Until(h.deadline) >= whole/2
}

// attach gives a hold that was passed on, or is shared, to a Lease that uses it now, unless the hold was lost meanwhile, or the Engine is
// closing: then nobody would end that Lease.
func (k *keeper) attach(h *hold, lease *Lease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.index == 0 || k.engine.isClosing() || !time.Now().Before(h.deadline) {
		return false
	}
	h.use(lease)
	return true
}

// plan sets when h is renewed next, after a grant or renewal that was sent at start: a third of the ttl later, give or
// take a tenth so that holds taken together do not stay together.
func (k *keeper) plan(h *hold, start time.Time, ttl time.Duration) {
	h.final = !k.engine.cfg.renewal || !h.until.IsZero() && !start.Add(ttl).Before(h.until)
	third := ttl / 3
	if h.claim.Mode == Shared && h.claim.Inbox == "" {
		third = min(third, untoldAsks)
	}
	h.renew = start.Add(third - third/10 + rand.N(third/5+1))
	h.due = time.Time{}
}

// rouse wakes run when the earliest time has come nearer; k.mu is held.
func (k *keeper) rouse() {
	if len(k.due) > 0 && (k.next.IsZero() || k.due[0].at.Before(k.next)) {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

// remove takes h out of care. No renewal is sent for it after that; one under way can only lengthen what is still held.
// It says until when the hold is ours, and for how long at most the server may keep it.
func (k *keeper) remove(h *hold) (deadline time.Time, longest time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.index > 0 {
		heap.Remove(&k.due, h.index-1)
	}
	return h.deadline, h.longest
}

// drop takes h out of care because it is lost, and says who used it. It is false when h was out already: somebody else
// has seen to its end.
func (k *keeper) drop(h *hold) (users []*Lease, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.index == 0 {
		return nil, false
	}
	heap.Remove(&k.due, h.index-1)
	return h.leases(), true
}

// leases are those in care.
func (k *keeper) leases() []*Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []*Lease
	for _, e := range k.due {
		all = append(all, e.hold.leases()...)
	}
	return all
}

// claimOf is what h was granted to, and has become.
func (k *keeper) claimOf(h *hold) Claim {
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.claim
}

func (k *keeper) deadlineOf(h *hold) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.deadline
}

// eachOf is what renewals of h ask for.
func (k *keeper) eachOf(h *hold) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.each
}

// shorten makes the hold of l end sooner on this side, and is false when ttl is more than it has.
func (k *keeper) shorten(l *Lease, ttl time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	h, now := l.hold, time.Now()
	deadline := now.Add(ttl - k.engine.cfg.drift(ttl))
	switch {
	case !h.usedBy(l) || deadline.After(h.deadline):
		return false
	case len(h.sharers) > 0: // others count on it
		return true
	}
	h.each, h.deadline = ttl, deadline
	k.plan(h, now, ttl)
	k.fix(h)
	return true
}

// extension returns what an extension of l by ttl asks for now, and the time from which its success counts. From then on
// the server may keep the lease for that long, and it is not passed on. It is false when it was passed on already.
func (k *keeper) extension(l *Lease, ttl time.Duration) (Claim, time.Time, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h, now := l.hold, time.Now()
	if !h.usedBy(l) {
		return Claim{}, now, false
	}
	h.longest, h.adaptive = max(h.longest, ttl), false
	return h.renewalAt(now, ttl), now, true
}

// delegated keeps the hold of l from being passed on. It is false when it was passed on already.
func (k *keeper) delegated(l *Lease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.hold.lease != l || l.hold.index == 0 {
		return false
	}
	l.hold.joinable = true
	return true
}

// extended makes renewals ask for ttl from now on.
func (k *keeper) extended(h *hold, ttl time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.each = ttl; len(h.sharers) > 0 {
		h.each = max(ttl, h.ttl)
	}
}

// renewalAt is a renewal by ttl that is sent now, no further than AtMost; the keeper's mutex is held.
func (h *hold) renewalAt(now time.Time, ttl time.Duration) Claim {
	if !h.until.IsZero() {
		ttl = max(min(ttl, h.until.Sub(now)), time.Millisecond)
	}
	return Claim{
		Key: h.claim.Key, Owner: h.claim.Owner, Mode: h.claim.Mode, TTL: ttl, Inbox: h.claim.Inbox, Fence: h.claim.Fence,
		Handed: h.handed > 0, Pass: h.claim.Pass,
	}
}

// answered applies a Store's answer to a renewal that was sent at start. An answer for a hold that has ended meanwhile
// changes nothing: what is lost stays lost. It says whether it is still held.
func (k *keeper) answered(h *hold, g Grant, claim Claim, start time.Time) bool {
	switch g.State {
	case Granted:
		if g.Writer {
			k.engine.cohorts.closePhase(h)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if h.index == 0 {
			return false
		}
		if claim.Handed {
			h.handed = 0
		}
		k.pace(h)
		h.failure = nil
		ttl, next := claim.TTL, claim.TTL
		if g.Left > 0 {
			ttl = min(ttl, g.Left)
			next = max(ttl, 6*renewSlack) // what runs out is not asked about without a pause
		}
		if deadline := start.Add(ttl - k.engine.cfg.drift(ttl)); deadline.After(h.deadline) {
			h.deadline = deadline
		}
		k.plan(h, start, next)
		k.fix(h)
		return true
	case Revoked:
		k.lose(h, revokedBecause(g.Reason))
	case NotOurs:
		k.lose(h, fmt.Errorf("%w: the server says it is not ours", ErrLost))
	default: // no answer to a renewal
		k.failed([]*hold{h}, g.Err)
		return true
	}
	return false
}

// lose ends a hold that the server has given away.
func (k *keeper) lose(h *hold, why error) {
	if users, ok := k.drop(h); ok {
		h.lost(users, why, false)
	}
}

// fix puts h into its place after its times changed; k.mu is held.
func (k *keeper) fix(h *hold) {
	if h.index > 0 {
		k.due.fix(h)
		k.rouse()
	}
}

// ending is a hold whose time is over.
type ending struct {
	hold  *hold
	users []*Lease
	why   error
}

// run sleeps until the earliest time in the schedule, and does what is due.
func (k *keeper) run() {
	defer close(k.ended)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		renewals, over, pause, stopped := k.collect()
		if stopped {
			return
		}
		for _, e := range over {
			e.hold.lost(e.users, e.why, true)
		}
		k.enqueue(renewals)
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-k.wake:
		}
	}
}

// collect takes what is due from the schedule: holds to renew, each of them due again soon in case no answer comes, and
// holds whose deadline has passed.
func (k *keeper) collect() (renewals []*hold, over []ending, pause time.Duration, stopped bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for len(k.due) > 0 {
		h := k.due[0].hold
		if !now.Before(h.deadline) {
			heap.Pop(&k.due)
			over = append(over, ending{h, h.leases(), h.timeout()})
			continue
		}
		if at := h.at(); at.Equal(h.deadline) || at.After(now.Add(renewSlack)) {
			break
		}
		renewals = append(renewals, h)
		if h.due.IsZero() {
			h.due = h.renew
		} else {
			k.pace(h)
		}
		h.renew = now.Add(retryAfter(h.each))
		k.due.fix(h)
	}
	pause, k.next = time.Hour, now.Add(time.Hour)
	if len(k.due) > 0 {
		k.next = k.due[0].at
		pause = k.next.Sub(now)
	}
	return renewals, over, pause, k.stopped
}

// pace tells the adaptive TTL how long a renewal has been due, and makes the next one ask for what that comes to; k.mu
// is held.
func (k *keeper) pace(h *hold) {
	p := k.engine.pace
	if p == nil || h.due.IsZero() {
		return
	}
	p.observe(time.Since(h.due))
	if h.adaptive {
		h.each = p.ttl()
		h.longest = max(h.longest, h.each)
	}
}

// retryAfter is when a renewal is sent again if it was not answered: several times within the rest of the lease. It is
// longer than renewSlack, or collect would take the same lease twice.
func retryAfter(ttl time.Duration) time.Duration {
	d := max(min(ttl/10, time.Second), 2*renewSlack)
	return d - d/10 + rand.N(d/5+1)
}

// enqueue hands holds to the senders. One is enough while the server answers, and leaves it time for others; there is another
// one when none of them has got ahead for a while. While all of them hang, what is due again is pending already: nothing
// piles up.
func (k *keeper) enqueue(holds []*hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range holds {
		if !h.pending {
			h.pending = true
			k.pending = append(k.pending, h)
		}
	}
	if len(k.pending) > 0 && k.senders < renewCalls && (k.senders == 0 || time.Since(k.sent) > senderHangs) {
		k.senders++
		ask(&k.engine.calls, func() (struct{}, error) { k.work(); return struct{}{}, nil })
	}
}

// work renews batch after batch until nothing is pending.
func (k *keeper) work() {
	for {
		holds, claims, start := k.batch()
		if len(claims) == 0 {
			return
		}
		k.send(holds, claims, start)
	}
}

// batch takes what goes into the next call. It leaves the holds out that have ended while they were pending: a release is
// not followed by a renewal. When nothing is left, the sender that asked is no sender any more.
func (k *keeper) batch() (holds []*hold, claims []Claim, start time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for len(k.pending) > 0 && len(claims) < renewBatch {
		h := k.pending[0]
		k.pending[0] = nil
		k.pending = k.pending[1:]
		h.pending = false
		if h.index > 0 {
			holds = append(holds, h)
			claims = append(claims, h.renewalAt(now, h.next(now)))
		}
	}
	if k.sent = now; len(claims) == 0 {
		k.pending = nil
		k.senders--
	}
	return holds, claims, now
}

// next is by how much a renewal lengthens the hold; the confirmation of one that is never renewed changes nothing.
func (h *hold) next(now time.Time) time.Duration {
	if h.final {
		return max(min(h.each, h.deadline.Sub(now)), time.Millisecond)
	}
	return h.each
}

// send makes one call.
func (k *keeper) send(holds []*hold, claims []Claim, start time.Time) {
	ctx, cancel := context.WithTimeout(k.engine.background, callTimeout)
	defer cancel()
	grants, err := k.engine.store.Renew(ctx, claims)
	if err == nil && len(grants) != len(claims) {
		err = fmt.Errorf("the Store answered %d of %d renewals", len(grants), len(claims))
	}
	if err != nil {
		k.failed(holds, err)
		return
	}
	for i, h := range holds {
		k.answered(h, grants[i], claims[i], start)
	}
}

// failed remembers why, for the message of a loss. A failed renewal is not a loss.
func (k *keeper) failed(holds []*hold, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range holds {
		h.failure = err
	}
}

// stop ends the goroutine. Holds that are still held run out on the server.
func (k *keeper) stop() {
	k.mu.Lock()
	k.stopped = true
	running := k.running
	k.running = true // nobody starts it again
	k.mu.Unlock()
	if running {
		select {
		case k.wake <- struct{}{}:
		default:
		}
		<-k.ended
	}
}
