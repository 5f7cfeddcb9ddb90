package locker

import (
	"iter"
	"math/rand/v2"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

const (
	// A lease that the server has granted by message lasts for at most longestHand until the
	// winner renews it. So if the winner is paused or cut off, the other waiters lose only
	// longestHand, and not the winner's TTL.
	longestHand = 2 * time.Second
	// freshGrant is the largest age at which a grant by message is used. An older grant means that
	// the process was paused, the message was late or a clock stepped. Then the waiter asks the
	// server instead.
	freshGrant = 100 * time.Millisecond
	// A waiter in the queue asks again from time to time, in case a message was lost or a holder
	// died. The head of the queue asks every headAsks, and the other waiters ask every
	// othersAsk.
	headAsks, othersAsk = time.Second, 10 * time.Second
	// Timers fire a millisecond late. So when the holder's time is nearly over, the head asks
	// without a pause, at most mostRushes times.
	rushFrom, mostRushes = 2 * time.Millisecond, 20
)

// anchor ties the server's clock to the local clock. At the moment when the server's clock showed
// anchor.server, the local clock showed anchor.local or a later time.
type anchor struct{ local, server time.Time }

// toLocal converts a time from the server's clock to the local clock. It returns the earliest local
// time that is possible, and the uncertainty: by how much that time may be wrong. The uncertainty
// grows with the age of the anchor, because the rates of the clocks may differ by 1 %, as in
// config.drift.
func (c anchor) toLocal(server time.Time) (earliest time.Time, uncertainty time.Duration) {
	waited := server.Sub(c.server)
	slip := waited / 100
	return c.local.Add(waited - slip), 2 * slip
}

// wait waits until there is a lease, or a reason to ask again, and then asks.
func (a *acquisition) wait() (*Lease, error) {
	if !a.busySince.IsZero() && a.current && a.hopeless() {
		return nil, a.giveUp(errWaitOver)
	}
	if !a.busySince.IsZero() && !a.admit() {
		if refused := a.fail(ErrTooManyWaiters, a.retryAfter()); !a.engine.cohorts.makeRoom(a, refused) {
			return nil, refused
		}
	}
	if !a.claim.Queue && a.current && a.engine.cfg.queue {
		if err := a.listen(); err != nil {
			return nil, err
		}
		return a.ask()
	}
	d, ok := a.patience()
	if !ok {
		return nil, a.giveUp(errWaitOver)
	}
	turns := a.engine.cohorts.park(a)
	lease, err := a.listenFor(d, turns)
	if turns != nil {
		lease, err = a.engine.cohorts.unpark(a, lease, err)
	}
	if lease == nil && err == nil {
		return a.ask()
	}
	return lease, err
}

// listenFor waits for events until it is time to ask again, but at most for d. If the caller leads
// a semaphore's cohort, it may receive another caller's permit through the channel turns during
// this time.
func (a *acquisition) listenFor(d time.Duration, turns <-chan turn) (*Lease, error) {
	until := time.Now().Add(d)
	timer := a.engine.timers.Start(d)
	defer a.engine.timers.Stop(timer)
	for {
		select {
		case <-timer.C:
			return nil, nil
		case <-a.box.bell:
			if lease, again, err := a.handleEvents(timer, until); lease != nil || err != nil || again {
				return lease, err
			}
		case t := <-turns:
			return a.takePermit(t), nil
		case <-a.caller.Done():
			return nil, a.giveUp(a.caller.Err())
		case <-a.expiry:
			return nil, a.giveUp(errWaitOver)
		case <-a.engine.closing:
			return nil, a.giveUp(ErrClosed)
		}
	}
}

// handleEvents acts on the events in the mailbox. The timer is for the next question, which is due
// at askAt.
func (a *acquisition) handleEvents(timer *time.Timer, askAt time.Time) (lease *Lease, again bool, err error) {
	n := a.engine.post.takeNews(&a.box)
	switch {
	case n.workDone:
		a.token.readMessage(readDone)
		return nil, false, a.fail(ErrDone, 0)
	case n.reopened: // another server, with another clock, may answer now
		a.clock, a.firstSent = anchor{}, time.Time{}
		return nil, true, nil
	case n.granted:
		a.token.readMessage(readGrant)
		lease, err = a.takeGrant(n.grant)
		return lease, lease == nil, err
	case n.isHead:
		a.place = 1
		// The event only makes the waiter ask its next question sooner.
		timer.Reset(min(time.Until(n.freeBy)+time.Millisecond, headAsks, time.Until(askAt)))
	}
	// A hint that the key may be free is ignored after an error or a late grant, because the undo
	// of this token may have caused the hint. If such a hint counted, the waiter would ask again
	// and again without a pause.
	return nil, n.maybeFree && a.current, nil
}

// takeGrant takes e, a grant that came by message, if the time of the grant is certain. Then the
// waiter does not ask the server again. Otherwise the waiter sends an acquire, whose answer
// shows whether the token holds the key.
func (a *acquisition) takeGrant(e store.Event) (*Lease, error) {
	since, ok := a.grantTime(e)
	if !ok {
		a.noteMessage(e)
		return nil, nil
	}
	a.noteHandoff(Peer{Traceparent: e.ReleasedBy}, HandoffRemote, 0)
	return a.newLease(store.Grant{State: store.Granted, Fence: e.Fence, FenceCount: e.FenceCount, At: e.At, Writer: e.Writer}, since, e.HandoffTTL)
}

// isCertain reports whether takeGrant would take the grant e.
func (a *acquisition) isCertain(e store.Event) bool {
	_, ok := a.grantTime(e)
	return ok
}

// grantTime returns the earliest local time at which the server can have made the grant that the
// message e reports. The result ok is true if that time is certain enough.
//
// The result is the local time at which the anchor's call was sent, plus the time from that call to
// the grant by the server's clock. If no call was answered yet, the result is the time at which the
// first call was sent.
func (a *acquisition) grantTime(e store.Event) (earliest time.Time, ok bool) {
	if a.engine.confirms {
		// The message does not show that a replica has acknowledged the grant. So the waiter
		// sends an acquire, which finds the grant and waits for the replica.
		return time.Time{}, false
	}
	earliest, off := a.firstSent, time.Duration(0)
	if !a.clock.server.IsZero() {
		earliest, off = a.clock.toLocal(e.At)
	}
	age := time.Since(earliest)
	return earliest, !earliest.IsZero() && age >= 0 && age <= freshGrant+off
}

// patience returns how long the waiter waits for an event before it asks again. It returns false
// when the Backoff has ended.
func (a *acquisition) patience() (d time.Duration, ok bool) {
	left := a.holder.Left
	// notified is false if the process has no subscription, because then it receives no messages.
	notified := a.claim.Inbox != "" && !a.notListening && a.engine.post.inbox(a.claim.Key) != ""
	if a.current && a.place > 0 && notified && (a.place > 1 || !a.holder.Foreign) {
		a.rechecks++
		if left > rushFrom {
			a.rushed = 0
		}
		switch {
		case a.place == 1 && left >= 0 && left <= rushFrom && a.rushed < mostRushes:
			a.rushed++
			return 0, true
		case a.place == 1 && left >= 0:
			return min(headAsks, max(left-rushFrom/2, time.Millisecond)), true
		case a.place == 1 || a.rechecks == 1:
			return headAsks + rand.N(headAsks/4), true
		// A foreign holder frees the key without a message. The head of the queue polls for it
		// but may have died, so other waiters ask too.
		case a.holder.Foreign:
			return headAsks + rand.N(headAsks), true
		case left >= 0:
			return min(max(left+rand.N(headAsks), headAsks), othersAsk), true
		}
		return othersAsk, true
	}
	// Here the waiter cannot be notified: the holder is foreign, the subscription is lost, the
	// Store sends no messages, or a call failed.
	if d, ok = a.pause(); a.current && left >= 0 {
		d = min(d, left+time.Millisecond)
	}
	a.polled = a.current
	return d, ok
}

// pause returns the next pause of the Backoff.
func (a *acquisition) pause() (time.Duration, bool) {
	if b := a.engine.cfg.adaptive; b != nil {
		return b.pause(a.engine.times.advise(a.rule.Name)), true
	}
	if a.pauses == nil {
		a.pauses, a.stop = iter.Pull(a.engine.cfg.backoff)
	}
	return a.pauses()
}
