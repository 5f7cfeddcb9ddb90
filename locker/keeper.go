package locker

import (
	"cmp"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// keeper renews all holds of an Engine, and ends the holds whose time is over. It is one goroutine
// with a schedule of due times, which never waits for the server: renewals are sent in the
// background, so a deadline takes effect in time even while a call hangs. A renewal without an
// answer is sent again a little later; that the server may then execute it twice does no harm.
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

func (k *keeper) init(e *Engine) {
	k.engine = e
	k.due.slots = make(map[int64][]*hold)
	k.wake = make(chan struct{}, 1)
	k.ended = make(chan struct{})
	k.clocks.look(time.Now())
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

// collect returns the holds to renew, and takes from the schedule the holds whose deadline has
// passed. A hold to renew is scheduled again for a little later, because its renewal may get no
// answer. pause is how long the keeper may sleep, and stopped whether it must end.
func (k *keeper) collect() (renewals []*hold, ended []ending, pause time.Duration, stopped bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	read := time.Now()
	now := instantOf(read)
	k.lookForSuspension(read)
	due, next := k.due.until(now.plus(renewSlack))
	renewals = due[:0]
	for _, h := range due {
		switch r := &h.renewal; {
		case now >= r.deadline.load():
			k.due.remove(h)
			ended = append(ended, ending{h, slices.Clone(r.users), h.errTimeout()})
			continue
		case r.lookTime() < r.deadline.load():
			renewals = append(renewals, h)
			if r.firstDue == 0 {
				r.firstDue = r.renewAt
			} else {
				k.noteDelay(h)
			}
			r.renewAt = now.plus(repeatPause(r.renewTTL))
			k.due.reschedule(h)
		}
		if at := h.renewal.lookTime(); next == 0 || at < next {
			next = at
		}
	}
	if k.next = now.plus(time.Hour); next != 0 {
		k.next = min(next, now.plus(looksForSuspension))
	}
	return renewals, ended, k.next.sub(now), k.stopped
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

// add puts a new hold into the schedule, with lease as its user. The parameter start is h.start, as
// both clocks showed it. add returns false if the Engine is closing.
func (k *keeper) add(h *hold, lease *Lease, start time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.engine.isClosing() {
		return false
	}
	h.renewal.users = append(h.renewal.one[:0], lease)
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
	k.wakeRun(h.renewal.lookTime())
	return true
}

// retire takes h out of the schedule, and returns its release, as a Chore that can be repeated
// without a caller, and its deadline. No renewal is sent after that; one that is under way can only
// lengthen a lease that is still held.
func (k *keeper) retire(h *hold) (release calls.Chore, deadline instant) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.lookForSuspension(now) // the deadline of h may have come nearer
	if h.renewal.index > 0 {
		k.due.remove(h)
	}
	release.Claim = h.claim
	release.Claim.TombstoneTTL = calls.UndoFor(h.unclear, h.claim.TTL)
	lives := max(h.renewal.longest, release.Claim.TombstoneTTL)
	if h.claim.Queue { // a quorum's node that has not granted the lease may have queued the token
		lives = max(lives, calls.QueueLife)
	}
	release.Useless = now.Add(lives)
	if h.keepUntil != 0 {
		release.Keep = h.keepUntil.time()
	}
	return release, h.renewal.deadline.load()
}

// attach makes lease a user of h, which was handed over or is shared. It returns false if h was
// lost meanwhile or the Engine is closing, because then nothing would end the Lease at the deadline
// of h.
func (k *keeper) attach(h *hold, lease *Lease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.renewal.index == 0 || k.engine.isClosing() || instantOf(time.Now()) >= h.renewal.deadline.load() {
		return false
	}
	h.renewal.users = append(h.renewal.users, lease)
	return true
}

// removeUser removes l from the Leases that use h. The events of the hold are those of the first that
// stays.
func (k *keeper) removeUser(h *hold, l *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := slices.Index(h.renewal.users, l); i >= 0 {
		h.renewal.users = slices.Delete(h.renewal.users, i, i+1)
	}
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
	if h.renewal.users = h.renewal.users[:0]; !h.renewal.adaptive {
		h.renewal.renewTTL = h.claim.TTL
	}
	return true
}

// isSound reports whether h may be handed over or shared.
func (k *keeper) isSound(h *hold) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return h.isSoundLocked()
}

// isSoundLocked reports whether the hold may be handed over or shared: it is in the schedule, no
// renewal has failed, no suspension makes it doubtful, Extend has not lengthened it, and at least
// half of its TTL is left. The caller holds the keeper's mutex.
func (h *hold) isSoundLocked() bool {
	whole := h.claim.TTL
	if h.renewal.handoffTTL > 0 {
		whole = h.renewal.handoffTTL
	}
	extended := h.renewal.longest > h.claim.TTL && !h.renewal.adaptive
	return h.renewal.index > 0 && h.renewal.failure == nil && !h.renewal.doubtful && !extended && h.renewal.deadline.load().sub(instantOf(time.Now())) >= whole/2
}

// planRenewal sets the time of the next renewal of h: a third of ttl after start, when the last
// call was sent, ± 10 %, so that holds that were taken together are not all renewed together. It
// rounds this time down to a twentieth of the third: the many holds of a process then share calls,
// each of which some servers bill. Very many holds share them without long steps, which would keep the
// server busy for milliseconds at a time.
func (k *keeper) planRenewal(h *hold, start instant, ttl time.Duration) {
	h.renewal.final = !k.engine.cfg.renewal || h.renewal.atMostEnd != 0 && start.plus(ttl) >= h.renewal.atMostEnd
	third := ttl / 3
	switch {
	case h.claim.Mode != Shared:
	case h.claim.Inbox == "":
		third = min(third, unnotifiedRenewals)
	default:
		third = min(third, notifiedRenewals)
	}
	at, step := start.plus(third-third/10+rand.N(third/5+1)), max(instant(third)*sharedBy/instant(max(k.due.n, 20*sharedBy)), 1)
	h.renewal.renewAt = at - (at%step+step)%step
	h.renewal.firstDue = 0
}

// reschedule puts h into its place in the schedule after its times changed. The caller holds k.mu.
func (k *keeper) reschedule(h *hold) {
	if h.renewal.index > 0 {
		k.due.reschedule(h)
		k.wakeRun(h.renewal.lookTime())
	}
}

// wakeRun wakes run if the time at comes before the time until which it sleeps. The caller holds
// k.mu.
func (k *keeper) wakeRun(at instant) {
	if k.next == 0 || at < k.next {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

// send sends the renewals of the holds in due to the Store, which may answer them one by one. It
// leaves out holds that have ended meanwhile. The TTL of each renewal counts from now.
func (k *keeper) send(due []*hold) {
	start := time.Now()
	holds, claims := due[:0], make([]*store.Claim, 0, len(due))
	k.mu.Lock()
	for _, h := range due {
		if h.renewal.index > 0 && h.renewal.unanswered < mostUnanswered {
			h.renewal.unanswered++
			holds = append(holds, h)
			claims = append(claims, h.renewalAt(start, h.nextTTL(start)))
		}
	}
	k.mu.Unlock()
	if len(claims) == 0 {
		return
	}
	k.engine.steps.BeginRenew(k.engine.background, claims, func(places []int, grants []store.Grant) {
		k.mu.Lock()
		for _, i := range places {
			holds[i].renewal.unanswered--
		}
		k.mu.Unlock()
		observers := k.observeRenewals(places, holds, claims, grants)
		for n, i := range places {
			k.applyAnswer(holds[i], grants[n], claims[i], start)
		}
		if len(observers) > 0 {
			k.engine.calls.Do(func() { // a slow Observer delays no answer
				for _, call := range observers {
					call()
				}
			})
		}
	})
}

// renewalAt returns the claim of a renewal that is sent at the time now. The claim asks for ttl, or
// less if EndAfter ends the lease before. The caller holds the keeper's mutex.
func (h *hold) renewalAt(now time.Time, ttl time.Duration) *store.Claim {
	if h.renewal.atMostEnd != 0 {
		ttl = max(min(ttl, h.renewal.atMostEnd.sub(instantOf(now))), time.Millisecond)
	}
	byHandoff := h.renewal.handoffTTL > 0
	if !byHandoff && ttl == h.claim.TTL {
		return &h.claim // which does not change
	}
	c := h.claim
	c.TTL, c.ByHandoff = ttl, byHandoff
	return &c
}

// nextTTL returns the TTL for the next renewal of the hold, which is sent at the time now. For a
// hold that is never renewed it is the time that is left, because then the call only confirms the
// hold.
func (h *hold) nextTTL(now time.Time) time.Duration {
	if h.renewal.final && (h.renewal.atMostEnd == 0 || !h.engine.cfg.renewal) {
		return max(min(h.renewal.renewTTL, h.renewal.deadline.load().sub(instantOf(now))), time.Millisecond)
	}
	return h.renewal.renewTTL
}

// applyAnswer applies g, the Store's answer to a renewal of h with the given claim, which was sent
// at the time start. It reports whether h is still held. A lost hold stays lost.
func (k *keeper) applyAnswer(h *hold, g store.Grant, claim *store.Claim, start time.Time) bool {
	switch g.State {
	case store.Granted:
		if g.Writer {
			k.engine.cohorts.closePhase(h)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if h.renewal.index == 0 {
			return false
		}
		if claim.ByHandoff {
			h.renewal.handoffTTL = 0
		}
		k.noteDelay(h)
		h.renewal.failure = nil
		now := time.Now()
		k.lookForSuspension(now) // before the new deadline is stored, from which the gain is not missing
		k.planRenewal(h, instantOf(start), claim.TTL)
		end := instantOf(start).plus(claim.TTL - k.engine.cfg.drift(claim.TTL))
		gain := k.clocks.gained(start, now) // the answer may be from before a suspension
		if gain > 0 {
			end = h.endAfterSuspension(end, instantOf(now), gain)
		}
		if h.renewal.doubtful = gain > 0 && !h.renewal.final; h.renewal.doubtful {
			h.renewal.renewAt = instantOf(now)
		}
		if gain == 0 || !h.renewal.final { // otherwise no renewal follows that could prove the old deadline
			end = max(h.renewal.deadline.load(), end)
		}
		h.renewal.deadline.store(end)
		k.reschedule(h)
		return true
	case store.Revoked, store.NotOurs:
		k.lose(h, failureOf(g))
	default: // a Store must not answer a renewal with any other state
		k.mu.Lock()
		defer k.mu.Unlock()
		h.renewal.failure = g.Err // the message of a later loss contains the error; a failed renewal is no loss
		return true
	}
	return false
}

// failureOf returns nil when the answer g confirms a renewal. Otherwise it returns the reason.
func failureOf(g store.Grant) error {
	switch g.State {
	case store.Granted:
		return nil
	case store.Revoked:
		return revokedBecause(g.Reason)
	case store.NotOurs:
		return errTaken
	default:
		return asUnavailable(g.Err)
	}
}

// noteDelay gives the delay of h's renewal to the tuner, and takes over the TTL that it chooses.
// The caller holds k.mu.
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

// repeatPause returns the pause before an unanswered renewal of a lease of ttl is sent again, short
// enough for several repetitions. It is longer than renewSlack, because otherwise collect would
// take the same hold twice.
func repeatPause(ttl time.Duration) time.Duration {
	d := max(min(ttl/10, time.Second), 2*renewSlack)
	return d - d/10 + rand.N(d/5+1)
}

// renewReaders makes the renewals of readers due now: of the readers that receive their events
// at inbox, and of all readers if inbox is "".
func (k *keeper) renewReaders(inbox string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, h := range slices.Collect(k.due.holds()) {
		if h.claim.Mode == Shared && !h.renewal.final && (inbox == "" || h.claim.Inbox == inbox) {
			h.renewal.renewAt = instantOf(time.Now())
			k.reschedule(h)
		}
	}
}

// lose ends h for the given reason: the server does not know the lease any more. If h has left the
// schedule, another call deals with the end of h.
func (k *keeper) lose(h *hold, reason error) {
	k.mu.Lock()
	if h.renewal.index == 0 {
		k.mu.Unlock()
		return
	}
	k.due.remove(h)
	users := slices.Clone(h.renewal.users)
	k.mu.Unlock()
	h.handleLoss(users, reason, false)
}

// takeOverdue takes the hold of l from the schedule if its deadline has passed. It returns the
// Leases that must end, for the given reason. If removed is false, another goroutine has taken the
// hold from the schedule, but may not have ended the Leases yet.
func (k *keeper) takeOverdue(l *Lease) (h *hold, users []*Lease, reason error, removed bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h = l.hold
	if !slices.Contains(h.renewal.users, l) || instantOf(time.Now()) < h.renewal.deadline.load() {
		return h, nil, nil, false
	}
	if removed = h.renewal.index > 0; removed {
		k.due.remove(h)
	}
	return h, slices.Clone(h.renewal.users), h.errTimeout(), removed
}

// errTimeout returns the error for a hold whose deadline has passed. The caller holds the keeper's
// mutex.
func (h *hold) errTimeout() error {
	switch {
	case h.renewal.final:
		return ErrExpired
	case h.renewal.failure != nil:
		return fmt.Errorf("%w: %w", errUnrenewed, h.renewal.failure)
	}
	return errPaused
}

// beginExtension prepares a step that is sent now and extends l by ttl. It returns the claim, and
// the time from which the new TTL counts. From now on the server may keep the lease for ttl, and
// the hold is not handed over. It returns false if l does not use the hold any more.
func (k *keeper) beginExtension(l *Lease, ttl time.Duration) (*store.Claim, time.Time, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h, now := l.hold, time.Now()
	if !slices.Contains(h.renewal.users, l) {
		return nil, now, false
	}
	h.renewal.longest, h.renewal.adaptive = max(h.renewal.longest, ttl), false
	return h.renewalAt(now, ttl), now, true
}

// applyExtension is called after an extension of h. From then on, renewals of h ask for ttl, but not for
// less than the Rule does, which others that use h, or will use it, rely on.
func (k *keeper) applyExtension(h *hold, ttl time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h.renewal.renewTTL = max(ttl, h.claim.TTL)
}

// keepNothing cancels Rule.KeepFor, so that the release frees the key at once, because no work was
// done under the lease. It has no effect if other parts use the lease, or have used it.
func (l *Lease) keepNothing() {
	if l.family != nil && !l.family.isFirst() {
		return
	}
	k := &l.engine.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	l.hold.keepUntil = 0
}

// leases returns all Leases that use a hold in the schedule.
func (k *keeper) leases() []*Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	var all []*Lease
	for h := range k.due.holds() {
		all = append(all, h.renewal.users...)
	}
	return all
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

// renewal is the part of a hold that its keeper's mutex guards.
type renewal struct {
	users      []*Lease      // none during a hand-off, and before the first use
	one        [1]*Lease     // the memory of users, for most holds
	renewTTL   time.Duration // the TTL that a renewal asks for
	longest    time.Duration // the longest TTL of all renewals, after which the server has forgotten the lease
	atMostEnd  instant       // the time at which EndAfter is over; 0: there is no EndAfter
	deadline   atomicInstant // the local, conservative time at which the hold is over
	handoffTTL time.Duration // > 0: granted by message for this long; the first renewal confirms it
	renewAt    instant       // when the next renewal is due, if one will be sent
	firstDue   instant       // for a repeated renewal: when it was first due
	failure    error         // the error of the last renewal attempt
	slot       int64         // the number of the hold's slot in the schedule
	index      int32         // the place in that slot, from 1; 0: not in the schedule
	unanswered int8          // the number of renewals under way
	final      bool          // the hold is not renewed any more
	doubtful   bool          // since a suspension, no renewal was answered
	adaptive   bool          // the Engine chooses the TTL in the field renewTTL
}

// lookTime returns the time at which the keeper must look at the hold.
func (r *renewal) lookTime() instant {
	if !r.final || r.handoffTTL > 0 {
		return min(r.renewAt, r.deadline.load())
	}
	return r.deadline.load()
}

// schedule has holds by the time at which the keeper must look at each of them, in slots of 17 ms
// without an order inside. Each renewal moves its hold twice in the schedule, and in a heap of a
// hundred thousand holds each move would read distant memory at each level.
type schedule struct {
	slots   map[int64][]*hold
	numbers []int64 // the numbers of the slots, the earliest first; a slot may be empty
	n       int     // how many holds
}

// add puts h into the schedule.
func (s *schedule) add(h *hold) {
	n := int64(h.renewal.lookTime()) >> slotBits
	others, known := s.slots[n]
	if !known {
		// Most slots are new at the end: a renewal moves its hold to later than most others.
		i, _ := slices.BinarySearch(s.numbers, n)
		s.numbers = slices.Insert(s.numbers, i, n)
	}
	s.slots[n] = append(others, h)
	s.n++
	h.renewal.slot, h.renewal.index = n, int32(len(others)+1)
}

// remove takes h out of the schedule.
func (s *schedule) remove(h *hold) {
	others := s.slots[h.renewal.slot]
	last := len(others) - 1
	others[h.renewal.index-1] = others[last]
	others[h.renewal.index-1].renewal.index = h.renewal.index
	others[last] = nil
	s.slots[h.renewal.slot] = others[:last] // an empty slot stays until its time
	s.n--
	h.renewal.index = 0
}

// reschedule puts h into its place after its times changed.
func (s *schedule) reschedule(h *hold) {
	s.remove(h)
	s.add(h)
}

// until returns the holds whose time is t or before, and a time at which the keeper must look again,
// so that it is late for none of the others; 0: there are no others.
func (s *schedule) until(t instant) (due []*hold, next instant) {
	for len(s.numbers) > 0 && len(s.slots[s.numbers[0]]) == 0 {
		delete(s.slots, s.numbers[0])
		s.numbers = s.numbers[1:]
	}
	for _, n := range s.numbers {
		if begin := instant(n << slotBits); begin > t {
			if next == 0 && len(s.slots[n]) > 0 {
				next = begin
			}
			if next != 0 {
				break
			}
		}
		for _, h := range s.slots[n] {
			switch at := h.renewal.lookTime(); {
			case at <= t:
				due = append(due, h)
			case next == 0 || at < next:
				next = at
			}
		}
	}
	return due, next
}

// holds returns all holds in the schedule, in no order.
func (s *schedule) holds() iter.Seq[*hold] {
	return func(yield func(*hold) bool) {
		for _, holds := range s.slots {
			for _, h := range holds {
				if !yield(h) {
					return
				}
			}
		}
	}
}

// instant is a time on the monotonic clock, in ns; 0 means that there is no time. It needs one word
// of memory, and a time.Time three: a keeper has several for each hold and compares them all the
// time.
type instant int64

// epoch is the time from which instants count.
var epoch = time.Now()

// instantOf returns t as an instant.
func instantOf(t time.Time) instant { return instant(t.Sub(epoch)) }

// atomicInstant is an instant that is written under the keeper's mutex, and can be read without it.
type atomicInstant struct{ ns atomic.Int64 }

func (a *atomicInstant) load() instant   { return instant(a.ns.Load()) }
func (a *atomicInstant) store(i instant) { a.ns.Store(int64(i)) }

// plus returns the instant that is d after i.
func (i instant) plus(d time.Duration) instant { return i + instant(d) }

// sub returns the duration from start to i.
func (i instant) sub(start instant) time.Duration { return time.Duration(i - start) }

// time returns i as a time.Time, from the present time: the wall clock may have been set since
// epoch.
func (i instant) time() time.Time {
	now := time.Now()
	return now.Add(i.sub(instantOf(now)))
}

// clocks compares the wall clock with the monotonic clock. During a pause of the process, the
// monotonic clock runs on. But during a suspension of the machine (a closed laptop, a virtual
// machine that is saved and restored) it stands still, so all deadlines of this process come late
// by the length of the suspension. The wall clock shows it by a jump ahead.
type clocks struct {
	wallLead time.Duration // the result of leadAt at the last look
	testLead time.Duration // for tests: how far the wall clock was set forward
	testFrom instant       // for tests: when it was set forward
}

// leadAt returns how far the wall clock was ahead of the monotonic clock when t was read.
func (c *clocks) leadAt(t time.Time) time.Duration {
	lead := t.Round(0).Sub(epoch.Round(0)) - t.Sub(epoch)
	if instantOf(t) >= c.testFrom {
		lead += c.testLead
	}
	return lead
}

// gained returns how much the wall clock has gained between two times. It is 0 unless the machine
// was suspended or the clock was set forward.
func (c *clocks) gained(from, to time.Time) time.Duration { return jump(c.leadAt(to) - c.leadAt(from)) }

// look compares the clocks at the time now. It returns how much the wall clock has gained since the
// last look.
func (c *clocks) look(now time.Time) time.Duration {
	last := c.wallLead
	c.wallLead = c.leadAt(now)
	return jump(c.wallLead - last)
}

// jump returns gain, or 0 if the gain is too small for a suspension.
func jump(gain time.Duration) time.Duration {
	if gain < suspendedFor {
		return 0
	}
	return gain
}

// lookForSuspension compares the clocks at the time now, and adjusts the holds in the schedule if
// the machine was suspended. The caller holds k.mu.
func (k *keeper) lookForSuspension(now time.Time) {
	gain := k.clocks.look(now)
	if gain == 0 {
		return
	}
	for _, h := range slices.Collect(k.due.holds()) {
		h.handleSuspension(instantOf(now), gain)
		k.reschedule(h)
	}
}

// handleSuspension is called when the wall clock has gained the time gain since h was granted. The
// caller holds the keeper's mutex, and reschedules h.
func (h *hold) handleSuspension(now instant, gain time.Duration) {
	h.renewal.deadline.store(h.endAfterSuspension(h.renewal.deadline.load(), now, gain))
	if !h.renewal.final {
		h.renewal.renewAt, h.renewal.doubtful = now, true
	}
}

// endAfterSuspension returns the deadline that replaces end when the wall clock has gained the time
// gain. This may also mean that the clock was set forward, so a lease with renewals has time for
// the answer to one.
func (h *hold) endAfterSuspension(end, now instant, gain time.Duration) instant {
	if h.renewal.final {
		return end.plus(-gain)
	}
	return max(end.plus(-gain), min(end, now.plus(answerAfterSuspension)))
}

// observeRenewals returns calls of the Observer about renewals, made before their answers change the
// holds. For each index i in places, holds[i] was renewed by claims[i], and grants has the answers.
// A hold that no Lease uses at the moment is left out.
func (k *keeper) observeRenewals(places []int, holds []*hold, claims []*store.Claim, grants []store.Grant) (calls []func()) {
	o, ok := k.engine.cfg.observer.(RenewalObserver)
	if !ok {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := instantOf(time.Now())
	for n, i := range places {
		if h := holds[i]; h.renewal.index > 0 && len(h.renewal.users) > 0 {
			whole := claims[i].TTL
			if claims[i].ByHandoff { // an earlier answer may have confirmed the hand-off meanwhile
				whole = cmp.Or(h.renewal.handoffTTL, whole)
			}
			ctx, rule := h.renewal.users[0].base, h.renewal.users[0].rule
			event := RenewalEvent{Margin: h.renewal.deadline.load().sub(now), TTL: whole, Err: failureOf(grants[n])}
			calls = append(calls, func() {
				defer absorb("Renewed")
				o.Renewed(ctx, rule, event)
			})
		}
	}
	return calls
}
