package locker

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// keeper renews all holds of an Engine, and ends the holds whose time is over. It is one goroutine
// with a schedule of due times, whatever the number of holds. This goroutine never waits for the
// server. Renewals are sent in the background, so a deadline takes effect in time even while a call
// hangs. If a renewal has no answer, the keeper sends it again a little later. So the server may
// execute a renewal twice, which does no harm.
type keeper struct {
	engine *Engine

	mu      sync.Mutex
	due     schedule
	running bool
	stopped bool
	wake    chan struct{} // signalled when the keeper must look at a hold before the time next
	next    instant       // the time until which run sleeps
	ended   chan struct{} // closed when run has returned
	clocks  clocks
}

const (
	renewSlack = 10 * time.Millisecond // holds that are due within this time are renewed in the same batch
)

func (k *keeper) init(e *Engine) {
	k.engine = e
	k.wake = make(chan struct{}, 1)
	k.ended = make(chan struct{})
	k.clocks.look(time.Now())
}

// add puts a new hold into the schedule, with lease as its user. The parameter start is h.start, as
// both clocks showed it. add returns false if the Engine is closing.
func (k *keeper) add(h *hold, lease *Lease, start time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.engine.isClosing() {
		return false
	}
	h.renewal.lease = lease
	k.planRenewal(h, h.start, h.renewal.renewTTL)
	if h.renewal.handoffTTL > 0 { // renew soon, because the server keeps the lease only for h.renewal.handoffTTL until the first renewal
		h.renewal.renewAt = h.start.plus(h.renewal.handoffTTL / 8)
	}
	// This look comes before h is in the schedule, because a suspension since the last look
	// concerns h only if it came after start.
	now := time.Now()
	k.lookForSuspension(now)
	if gain := k.clocks.gained(start, now); gain > 0 {
		h.handleSuspension(instantOf(now), gain)
	}
	k.due.add(h)
	if !k.running {
		k.running = true
		go k.run()
	}
	k.wakeRun()
	return true
}

// beginHandOff takes h from the Lease that used it, so that h can be handed over. It returns false
// if h is not sound or has too little time left.
func (k *keeper) beginHandOff(h *hold) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lookForSuspension(time.Now()) // a doubtful hold goes to nobody else
	if !h.isSoundLocked() {
		return false
	}
	if h.renewal.lease = nil; !h.renewal.adaptive {
		h.renewal.renewTTL = h.ttl
	}
	return true
}

// isSoundLocked reports whether the hold may be handed over or shared: it is in the schedule, its
// last renewal has not failed, no suspension makes it doubtful, Extend has not lengthened it, and at
// least half of its TTL is left. The caller holds the keeper's mutex.
func (h *hold) isSoundLocked() bool {
	whole := h.ttl
	if h.renewal.handoffTTL > 0 {
		whole = h.renewal.handoffTTL
	}
	extended := h.renewal.longest > h.ttl && !h.renewal.adaptive
	return h.renewal.index > 0 && h.renewal.failure == nil && !h.renewal.doubtful && !extended && h.renewal.deadline.load().sub(instantOf(time.Now())) >= whole/2
}

// attach makes lease a user of h, which was handed over or is shared. It returns false if h was
// lost meanwhile or the Engine is closing. In both cases the keeper would not end the Lease at the
// deadline of h.
func (k *keeper) attach(h *hold, lease *Lease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.renewal.index == 0 || k.engine.isClosing() || instantOf(time.Now()) >= h.renewal.deadline.load() {
		return false
	}
	h.renewal.addUser(lease)
	return true
}

// planRenewal sets the time of the next renewal of h. The parameter start is when the last renewal,
// or the call that was granted, was sent. The next renewal is due a third of ttl after start, with
// a random deviation of up to a tenth. So holds that were taken at the same time are not all
// renewed at the same time.
func (k *keeper) planRenewal(h *hold, start instant, ttl time.Duration) {
	h.renewal.final = !k.engine.cfg.renewal || h.renewal.atMostEnd != 0 && start.plus(ttl) >= h.renewal.atMostEnd
	third := ttl / 3
	if h.claim.Mode == Shared && h.claim.Inbox == "" {
		third = min(third, unnotifiedRenewals)
	}
	h.renewal.renewAt = start.plus(third - third/10 + rand.N(third/5+1))
	h.renewal.firstDue = 0
}

// wakeRun wakes run when the earliest due time has become earlier. The caller holds k.mu.
func (k *keeper) wakeRun() {
	if at := k.due.earliest(); at != 0 && (k.next == 0 || at < k.next) {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

// leases returns all Leases that use a hold in the schedule.
func (k *keeper) leases() []*Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []*Lease
	for h := range k.due.holds() {
		all = append(all, h.renewal.leases()...)
	}
	return all
}

// deadlineOf returns the local time at which h is over.
func (k *keeper) deadlineOf(h *hold) time.Time {
	return h.renewal.deadline.load().time()
}

// keepUntil returns until when KeepFor keeps the key of h; 0: it does not.
func (k *keeper) keepUntil(h *hold) instant {
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.keepUntil
}

// renewalTTL returns the TTL that renewals of h ask for.
func (k *keeper) renewalTTL(h *hold) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.renewal.renewTTL
}

// shorten makes the hold of l end after ttl in this process. It returns false when the hold has
// less time left than ttl.
func (k *keeper) shorten(l *Lease, ttl time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	h, now := l.hold, time.Now()
	deadline := instantOf(now).plus(ttl - k.engine.cfg.drift(ttl))
	switch {
	case !h.renewal.isUsedBy(l) || deadline > h.renewal.deadline.load():
		return false
	case len(h.renewal.sharers) > 0: // unchanged, because other readers rely on the present end of the hold
		return true
	}
	h.renewal.renewTTL = ttl
	h.renewal.deadline.store(deadline)
	k.planRenewal(h, instantOf(now), ttl)
	k.reschedule(h)
	return true
}

// beginExtension prepares a step that is sent now and extends l by ttl. It returns the claim, and
// the time from which the new TTL counts if the extension succeeds. After this call the server may
// keep the lease for ttl, and the hold is not handed over any more. beginExtension returns false if
// the hold was handed over already.
func (k *keeper) beginExtension(l *Lease, ttl time.Duration) (store.Claim, time.Time, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h, now := l.hold, time.Now()
	if !h.renewal.isUsedBy(l) {
		return store.Claim{}, now, false
	}
	h.renewal.longest, h.renewal.adaptive = max(h.renewal.longest, ttl), false
	return h.renewalAt(now, ttl), now, true
}

// applyExtension is called after an extension of h. From then on, renewals of h ask for ttl.
func (k *keeper) applyExtension(h *hold, ttl time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.renewal.renewTTL = ttl; len(h.renewal.sharers) > 0 {
		h.renewal.renewTTL = max(ttl, h.ttl)
	}
}

// reschedule puts h into its place in the schedule after its times changed. The caller holds k.mu.
func (k *keeper) reschedule(h *hold) {
	if h.renewal.index > 0 {
		k.due.reschedule(h)
		k.wakeRun()
	}
}

// takeOverdue takes the hold of l from the schedule if its deadline has passed. It returns the
// Leases that must end, for the given reason. If removed is false, another goroutine has taken the
// hold from the schedule, but may not have ended the Leases yet.
func (k *keeper) takeOverdue(l *Lease) (h *hold, users []*Lease, reason error, removed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h = l.hold
	if !h.renewal.isUsedBy(l) || instantOf(time.Now()) < h.renewal.deadline.load() {
		return h, nil, nil, false
	}
	if removed = h.renewal.index > 0; removed {
		k.due.remove(h)
	}
	return h, h.renewal.leases(), h.errTimeout(), removed
}

// ending is a hold whose deadline has passed.
type ending struct {
	hold   *hold
	users  []*Lease
	reason error
}

// run sleeps until the earliest time in the schedule, and then sends the renewals that are due and
// ends the holds whose deadline has passed.
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
			e.hold.handleLoss(e.users, e.reason, true)
		}
		k.send(renewals)
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-k.wake:
		}
	}
}

// collect takes from the schedule the holds to renew, which it returns as renewals, and the
// holds whose deadline has passed, which it returns as ended. A hold to renew is scheduled
// again for a little later, because its renewal may get no answer. The result pause is how long
// the keeper may sleep, and stopped reports whether the keeper must end.
func (k *keeper) collect() (renewals []*hold, ended []ending, pause time.Duration, stopped bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	read := time.Now()
	now := instantOf(read)
	k.lookForSuspension(read)
	soon := now.plus(renewSlack)
	for h := k.due.first(soon); h != nil; h = k.due.first(soon) {
		if now >= h.renewal.deadline.load() {
			k.due.remove(h)
			ended = append(ended, ending{h, h.renewal.leases(), h.errTimeout()})
			continue
		}
		if h.renewal.lookTime() == h.renewal.deadline.load() {
			break
		}
		renewals = append(renewals, h)
		if h.renewal.firstDue == 0 {
			h.renewal.firstDue = h.renewal.renewAt
		} else {
			k.noteDelay(h)
		}
		h.renewal.renewAt = now.plus(repeatPause(h.renewal.renewTTL))
		k.due.reschedule(h)
	}
	if k.next = k.due.earliest(); k.next == 0 {
		k.next = now.plus(time.Hour)
	} else {
		k.next = min(k.next, now.plus(looksForSuspension))
	}
	return renewals, ended, k.next.sub(now), k.stopped
}

// noteDelay gives the delay of h's renewal to the tuner, which chooses the adaptive TTL from such
// delays. The next renewal of h asks for the new TTL. The caller holds k.mu.
func (k *keeper) noteDelay(h *hold) {
	p := k.engine.tuner
	if p == nil || h.renewal.firstDue == 0 {
		return
	}
	p.observe(instantOf(time.Now()).sub(h.renewal.firstDue))
	if h.renewal.adaptive {
		h.renewal.renewTTL = p.ttl()
		h.renewal.longest = max(h.renewal.longest, h.renewal.renewTTL)
	}
}

// stop ends the keeper's goroutine. Leases that are still held are not released: they expire on
// the server.
func (k *keeper) stop() {
	k.mu.Lock()
	k.stopped = true
	running := k.running
	k.running = true // prevents add from starting run again
	k.mu.Unlock()
	if running {
		select {
		case k.wake <- struct{}{}:
		default:
		}
		<-k.ended
	}
}
