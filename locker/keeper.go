package locker

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// keeper renews all leases of an Engine and ends those whose time is over: one goroutine over a heap of due times,
// whatever the number of leases. It never waits for the server itself: batches go out in goroutines of their own, so a
// deadline fires in time while a call hangs. A lease whose renewal is not answered is simply due again a little later;
// a renewal that is executed twice does no harm.
type keeper struct {
	engine *Engine

	mu      sync.Mutex
	due     schedule
	pending []*Lease // to be renewed, each once
	senders int      // goroutines that renew what is pending
	running bool
	stopped bool
	wake    chan struct{} // an earlier time than the one that run sleeps for
	next    time.Time     // what run sleeps for
	ended   chan struct{} // closed when run has returned
}

const (
	renewBatch  = 100                   // leases per call
	renewCalls  = 8                     // calls under way
	renewSlack  = 10 * time.Millisecond // what is due this soon goes into the same batch
	callTimeout = 5 * time.Second       // of calls in the background
)

func (k *keeper) init(e *Engine) {
	k.engine = e
	k.wake = make(chan struct{}, 1)
	k.ended = make(chan struct{})
}

// add takes a new lease into care, unless the Engine is closing.
func (k *keeper) add(l *Lease) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-k.engine.closing:
		return false
	default:
	}
	k.plan(l, l.sent, l.ttl)
	heap.Push(&k.due, l)
	if !k.running {
		k.running = true
		go k.run()
	}
	k.rouse()
	return true
}

// plan sets when l is renewed next, after a grant or renewal that was sent at start: a third of the ttl later, give or
// take a tenth so that leases taken together do not stay together.
func (k *keeper) plan(l *Lease, start time.Time, ttl time.Duration) {
	l.final = !k.engine.cfg.renewal || !l.until.IsZero() && !start.Add(ttl).Before(l.until)
	third := ttl / 3
	l.renew = start.Add(third - third/10 + rand.N(third/5+1))
}

// rouse wakes run when the earliest time has come nearer; k.mu is held.
func (k *keeper) rouse() {
	if len(k.due) > 0 && (k.next.IsZero() || k.due[0].at().Before(k.next)) {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
}

// remove takes l out of care. No renewal is sent for it after that; one under way can only lengthen what is still held.
func (k *keeper) remove(l *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.index > 0 {
		heap.Remove(&k.due, l.index-1)
	}
}

func (k *keeper) leases() []*Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]*Lease(nil), k.due...)
}

func (k *keeper) deadlineOf(l *Lease) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return l.deadline
}

func (k *keeper) longestOf(l *Lease) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return l.longest
}

// shorten makes the lease end sooner on this side, and is false when ttl is more than it has.
func (k *keeper) shorten(l *Lease, ttl time.Duration) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	deadline := now.Add(ttl - drift(ttl))
	if deadline.After(l.deadline) {
		return false
	}
	l.ttl, l.deadline = ttl, deadline
	k.plan(l, now, ttl)
	k.fix(l)
	return true
}

// extension returns what an extension of l by ttl asks for now, and the time from which its success counts. From then on
// the server may keep the lease for that long.
func (k *keeper) extension(l *Lease, ttl time.Duration) (Claim, time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l.longest = max(l.longest, ttl)
	now := time.Now()
	return k.claimAt(l, ttl, now), now
}

// extended makes renewals ask for ttl from now on.
func (k *keeper) extended(l *Lease, ttl time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l.ttl = ttl
}

func (k *keeper) claimAt(l *Lease, ttl time.Duration, now time.Time) Claim {
	if !l.until.IsZero() {
		ttl = max(min(ttl, l.until.Sub(now)), time.Millisecond)
	}
	return Claim{Key: k.engine.cfg.prefix + l.rule.Key, Owner: l.token, Mode: l.rule.Mode, TTL: ttl}
}

// answered applies a Store's answer to a renewal that was sent at start. An answer for a lease that has ended meanwhile
// changes nothing: what is lost stays lost. It says whether the lease is still held.
func (k *keeper) answered(l *Lease, g Grant, ttl time.Duration, start time.Time) bool {
	switch g.State {
	case Granted:
		k.mu.Lock()
		defer k.mu.Unlock()
		if deadline := start.Add(ttl - drift(ttl)); l.index > 0 && deadline.After(l.deadline) {
			l.deadline, l.failure = deadline, nil
			k.plan(l, start, ttl)
			k.fix(l)
		}
		return l.index > 0
	case Revoked:
		l.lose(revokedBecause(g.Reason), false)
	case NotOurs:
		l.lose(fmt.Errorf("%w: the server says it is not ours", ErrLost), false)
	default: // no answer to a renewal: as good as none
		return true
	}
	return false
}

// fix puts l into its place after its times changed; k.mu is held.
func (k *keeper) fix(l *Lease) {
	if l.index > 0 {
		heap.Fix(&k.due, l.index-1)
		k.rouse()
	}
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
		for _, l := range over {
			l.lose(l.timeout(), true)
		}
		k.enqueue(renewals)
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-k.wake:
		}
	}
}

// collect takes what is due from the schedule: leases to renew, each of them due again soon in case no answer comes, and
// leases whose deadline has passed.
func (k *keeper) collect() (renewals, over []*Lease, pause time.Duration, stopped bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for len(k.due) > 0 {
		l := k.due[0]
		if !now.Before(l.deadline) {
			heap.Pop(&k.due)
			over = append(over, l)
			continue
		}
		if at := l.at(); at.Equal(l.deadline) || at.After(now.Add(renewSlack)) {
			break
		}
		renewals = append(renewals, l)
		l.renew = now.Add(retryAfter(l.ttl))
		heap.Fix(&k.due, 0)
	}
	pause, k.next = time.Hour, now.Add(time.Hour)
	if len(k.due) > 0 {
		k.next = k.due[0].at()
		pause = k.next.Sub(now)
	}
	return renewals, over, pause, k.stopped
}

// retryAfter is when a renewal is sent again if it was not answered: several times within the rest of the lease. It is
// longer than renewSlack, or collect would take the same lease twice.
func retryAfter(ttl time.Duration) time.Duration {
	d := max(min(ttl/10, time.Second), 2*renewSlack)
	return d - d/10 + rand.N(d/5+1)
}

// enqueue hands leases to the senders. While all of them hang, what is due again is pending already: nothing piles up.
func (k *keeper) enqueue(leases []*Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range leases {
		if !l.pending {
			l.pending = true
			k.pending = append(k.pending, l)
		}
	}
	for missing := (len(k.pending) + renewBatch - 1) / renewBatch; missing > 0 && k.senders < renewCalls; missing-- {
		k.senders++
		ask(&k.engine.calls, func() (struct{}, error) { k.work(); return struct{}{}, nil })
	}
}

// work renews batch after batch until nothing is pending.
func (k *keeper) work() {
	for {
		leases, claims, start := k.batch()
		if len(claims) == 0 {
			return
		}
		k.send(leases, claims, start)
	}
}

// batch takes what goes into the next call. It leaves the leases out that have ended while they were pending: a release is
// not followed by a renewal. When nothing is left, the sender that asked is no sender any more.
func (k *keeper) batch() (leases []*Lease, claims []Claim, start time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for len(k.pending) > 0 && len(claims) < renewBatch {
		l := k.pending[0]
		k.pending[0] = nil
		k.pending = k.pending[1:]
		l.pending = false
		if l.index > 0 {
			leases = append(leases, l)
			claims = append(claims, k.claimAt(l, l.ttl, now))
		}
	}
	if len(claims) == 0 {
		k.pending = nil
		k.senders--
	}
	return leases, claims, now
}

// send makes one call.
func (k *keeper) send(leases []*Lease, claims []Claim, start time.Time) {
	ctx, cancel := context.WithTimeout(k.engine.background, callTimeout)
	defer cancel()
	grants, err := k.engine.store.Renew(ctx, claims)
	if err == nil && len(grants) != len(claims) {
		err = fmt.Errorf("the Store answered %d of %d renewals", len(grants), len(claims))
	}
	if err != nil {
		k.failed(leases, err)
		return
	}
	for i, l := range leases {
		k.answered(l, grants[i], claims[i].TTL, start)
	}
}

// failed remembers why, for the message of a loss. A failed renewal is not a loss.
func (k *keeper) failed(leases []*Lease, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range leases {
		l.failure = err
	}
}

// timeout says why a lease whose deadline has passed is over.
func (l *Lease) timeout() error {
	k := &l.engine.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case l.final:
		return ErrExpired
	case l.failure != nil:
		return fmt.Errorf("%w: its renewals failed until its time was over: %w", ErrLost, l.failure)
	}
	return fmt.Errorf("%w: it was not renewed in time; this process was paused or the server did not answer", ErrLost)
}

// stop ends the goroutine. Leases that are still held run out on the server.
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
