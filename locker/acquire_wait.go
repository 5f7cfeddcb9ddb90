package locker

import (
	"iter"
	"math/rand/v2"
	"time"

	"github.com/latchkit/latchkit/internal/store"
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
	if !a.waiting.busySince.IsZero() && !a.admit() {
		if refused := a.fail(ErrTooManyWaiters, a.retryAfter()); !a.caller.engine.cohorts.makeRoom(a, refused) {
			return nil, refused
		}
	}
	if !a.ticket.claim.Queue && a.ticket.current && a.caller.engine.cfg.queue {
		if err := a.listen(); err != nil {
			return nil, err
		}
		return a.ask()
	}
	if deaf, err := a.inboxIsDeaf(); err != nil {
		return nil, err
	} else if deaf {
		a.renewTicket()
		return a.ask()
	}
	d, ok := a.patience()
	if !ok {
		return nil, a.giveUp(errWaitOver)
	}
	lease, err := a.listenParked(d)
	if lease == nil && err == nil {
		return a.ask()
	}
	return lease, err
}

// inboxIsDeaf reports whether the ticket has an inbox without a subscriber, which cannot be
// subscribed again. At the next hand-off the server removes a waiter with such an inbox from the
// queue, as if its process were dead. It keeps a waiter without an inbox.
func (a *acquisition) inboxIsDeaf() (bool, error) {
	if !a.ticket.notListening || a.caller.engine.post.inbox(a.ticket.claim.Key) != "" {
		return false, nil
	}
	inbox, err := a.open(unansweredFor)
	return inbox != a.ticket.claim.Inbox, err
}

// listenParked calls listenFor, between park and unpark.
func (a *acquisition) listenParked(d time.Duration) (lease *Lease, err error) {
	turns := a.caller.engine.cohorts.park(a)
	if turns == nil {
		return a.listenFor(d, nil)
	}
	err = errPanicked // until listenFor returns
	defer func() { lease, err = a.caller.engine.cohorts.unpark(a, lease, err) }()
	return a.listenFor(d, turns)
}

// listenFor waits for events until it is time to ask again, but at most for d. If the caller leads
// a semaphore's cohort, it may receive another caller's permit through the channel turns during
// this time.
func (a *acquisition) listenFor(d time.Duration, turns <-chan turn) (*Lease, error) {
	until := time.Now().Add(d)
	timer := a.caller.engine.timers.Start(d)
	defer a.caller.engine.timers.Stop(timer)
	w := awaited{timer: timer.C, bell: a.ticket.box.bell, turns: turns}
	for {
		switch e, over := a.caller.await(&w); e {
		case timerFired:
			return nil, nil
		case bellRang:
			if lease, again, err := a.handleEvents(timer, until); lease != nil || err != nil || again {
				return lease, err
			}
		case turnCame:
			return a.takePermit(w.turn), nil
		default:
			return nil, a.giveUp(over)
		}
	}
}

// handleEvents acts on the events in the mailbox. The timer is for the next question, which is due
// at askAt.
func (a *acquisition) handleEvents(timer *time.Timer, askAt time.Time) (lease *Lease, again bool, err error) {
	n := a.caller.engine.post.takeNews(&a.ticket.box)
	switch {
	case n.workDone:
		a.ticket.token.readMessage(readDone)
		return nil, false, a.fail(ErrDone, 0)
	case n.reopened: // another server, with another clock, may answer now
		a.ticket.clock, a.ticket.firstSent = anchor{}, time.Time{}
		return nil, true, nil
	case n.granted:
		a.ticket.token.readMessage(readGrant)
		lease, err = a.takeGrant(n.grant)
		return lease, lease == nil, err
	case n.isHead:
		a.ticket.place, a.waiting.ahead = 1, 0
		// The event only makes the waiter ask its next question sooner.
		timer.Reset(min(time.Until(n.freeBy)+time.Millisecond, headAsks, time.Until(askAt)))
	}
	// A hint that the key may be free is ignored after an error or a late grant, because the undo
	// of this token may have caused the hint. If such a hint counted, the waiter would ask again
	// and again without a pause.
	return nil, n.maybeFree && a.ticket.current, nil
}

// takeGrant takes e, a grant that came by message, if the time of the grant is certain. Then the
// waiter does not ask the server again. Otherwise the waiter sends an acquire, whose answer
// shows whether the token holds the key.
func (a *acquisition) takeGrant(e store.Event) (*Lease, error) {
	since, ok := a.ticket.grantTime(a.caller.engine, e)
	if !ok {
		a.waiting.noteMessage(&a.caller, e)
		return nil, nil
	}
	a.waiting.noteHandoff(&a.caller, Peer{Traceparent: e.ReleasedBy}, HandoffRemote, 0)
	return a.newLease(store.Grant{State: store.Granted, Fence: e.Fence, FenceCount: e.FenceCount, At: e.At, Writer: e.Writer}, since, e.HandoffTTL)
}

// grantTime returns the earliest local time at which the server can have made the grant that the
// message e reports. The result ok is true if that time is certain enough.
//
// The result is the local time at which the anchor's call was sent, plus the time from that call to
// the grant by the server's clock. If no call was answered yet, the result is the time at which the
// first call was sent.
func (t *ticket) grantTime(engine *Engine, e store.Event) (earliest time.Time, ok bool) {
	if engine.can.NeedsConfirmation {
		// The message does not show that a replica has acknowledged the grant. So the waiter
		// sends an acquire, which finds the grant and waits for the replica.
		return time.Time{}, false
	}
	earliest, off := t.firstSent, time.Duration(0)
	if !t.clock.server.IsZero() {
		earliest, off = t.clock.toLocal(e.At)
	}
	age := time.Since(earliest)
	return earliest, !earliest.IsZero() && age >= 0 && age <= freshGrant+off
}

// patience returns how long the waiter waits for an event before it asks again. It returns false
// when the Backoff has ended.
func (a *acquisition) patience() (d time.Duration, ok bool) {
	left := a.ticket.holder.Left
	// notified is false if the process has no subscription, because then it receives no messages.
	notified := a.ticket.claim.Inbox != "" && !a.ticket.notListening && a.caller.engine.post.inbox(a.ticket.claim.Key) != ""
	if a.ticket.current && a.ticket.place > 0 && notified && (a.ticket.place > 1 || !a.ticket.holder.Foreign) {
		a.ticket.rechecks++
		if left > rushFrom {
			a.ticket.rushed = 0
		}
		switch {
		case a.ticket.place == 1 && left >= 0 && left <= rushFrom && a.ticket.rushed < mostRushes:
			a.ticket.rushed++
			return 0, true
		case a.ticket.place == 1 && left >= 0:
			return min(headAsks, max(left-rushFrom/2, time.Millisecond)), true
		case a.ticket.place == 1 || a.ticket.rechecks == 1:
			return headAsks + rand.N(headAsks/4), true
		// A foreign holder frees the key without a message. The head of the queue polls for it
		// but may have died, so other waiters ask too.
		case a.ticket.holder.Foreign:
			return headAsks + rand.N(headAsks), true
		case left >= 0:
			return min(max(left+rand.N(headAsks), headAsks), othersAsk), true
		}
		return othersAsk, true
	}
	// Here the waiter cannot be notified: the holder is foreign, the subscription is lost, the
	// Store sends no messages, or a call failed.
	if d, ok = a.waiting.pause(&a.caller); a.ticket.current && left >= 0 {
		d = min(d, left+time.Millisecond)
	}
	if a.caller.rule.Wait == NoWait { // after a question without an answer
		d = min(d, max(unansweredFor-time.Since(a.caller.began), shortestPause))
	}
	a.waiting.polled = a.ticket.current
	return d, ok
}

// pause returns the next pause of the Backoff.
func (w *waiting) pause(c *caller) (time.Duration, bool) {
	if b := c.engine.cfg.adaptive; b != nil {
		return b.pause(c.engine.times.advise(c.rule.Name)), true
	}
	if w.pauses == nil {
		w.pauses, w.stop = iter.Pull(c.engine.cfg.backoff)
	}
	d, ok := w.pauses()
	return max(d, shortestPause), ok
}

// shortestPause keeps a Backoff of zeros from asking the server without a break.
const shortestPause = time.Millisecond
