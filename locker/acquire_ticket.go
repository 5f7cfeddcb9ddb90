package locker

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/locker/store"
)

// ticket is one token on its way to a hold: what is asked of the Store with it, and what was last answered. It belongs to
// one acquisition, and can change hands with its place in the server's queue, when a cohort's leader gives up.
type ticket struct {
	claim    store.Claim // never changes once it was queued, because the queue finds an entry by all that it says
	token    token       // what the server may have of it
	first    time.Time   // when it was first sent; zero when events were lost since
	sent     time.Time   // when it was last sent
	box      mailbox     // what was told
	expected bool        // the post knows the token
	clock    anchor      // of the last answer

	current  bool // the last answer was busy, so what follows is true, and news of the key matter
	holder   store.Holder
	place    int
	deaf     bool
	rechecks int
	rushed   int // questions without a pause
}

// prepare makes the ticket ready for its first question: in the server's queue, if that is allowed and this process is
// told of grants. A Store that tells nothing may keep the order all the same, and is asked again and again.
func (a *acquisition) prepare() {
	a.claim = store.Claim{
		Key: a.key(), Owner: rand.Text(), Mode: a.rule.Mode, TTL: a.rule.lease(), FenceCount: 1,
		Metadata: a.meta, Once: a.rule.Once, Delegation: a.pass,
	}
	if a.cohort != nil && a.rule.Mode == Exclusive {
		a.claim.FenceCount = a.engine.cfg.handoffs
	}
	if !a.engine.cfg.queue {
		return
	}
	p := &a.engine.post
	if a.rule.Wait == NoWait {
		if a.rule.Mode == Shared {
			a.expectAt(p.inbox(a.claim.Key))
		}
		return
	}
	if inbox := p.inbox(a.claim.Key); p.notifier == nil || inbox != "" {
		a.join(inbox) // otherwise the first question may not need it
	}
}

// join makes the ticket queue at the server, and the post expect its grant at inbox; "" is nowhere.
func (a *acquisition) join(inbox string) {
	c := &a.claim
	c.Queue, c.HandoffTTL = true, c.TTL
	// A lease that is renewed is handed over for a short time at first. Not one with AtLeast, which must survive a crash.
	if a.engine.cfg.renewal && a.rule.AtLeast == 0 && (a.rule.AtMost == 0 || a.rule.AtMost > c.TTL) {
		c.HandoffTTL = min(c.TTL, longestHand)
	}
	a.expectAt(inbox)
}

// expectAt makes the post expect what is told about the ticket at inbox; "" is nowhere.
func (a *acquisition) expectAt(inbox string) {
	if a.claim.Inbox = inbox; inbox != "" {
		a.box.key, a.expected = a.claim.Key, true
		a.engine.post.register(a.claim.Owner, &a.box)
	}
}

// listen begins to listen for grants, once the first question has found the key busy, and queues.
func (a *acquisition) listen() error {
	inbox, err := a.open()
	if err != nil {
		return err
	}
	if a.rule.Mode == Shared && inbox != a.claim.Inbox {
		a.renewTicket() // what it may have among the readers was entered with its inbox
	}
	if !a.claim.Queue {
		a.join(inbox)
	}
	return nil
}

// open begins to listen, and returns the inbox: "" when there is none.
func (a *acquisition) open() (string, error) {
	e, key := a.engine, a.key()
	ch := calls.Ask(&e.calls, func() (string, error) {
		ctx, cancel := context.WithTimeout(e.background, calls.Timeout)
		defer cancel()
		return e.post.open(ctx, key)
	})
	timer := e.timers.Start(unansweredFor)
	defer e.timers.Stop(timer)
	select {
	case r := <-ch:
		if r.Err == nil {
			return r.Value, nil
		}
	case <-timer.C: // wait as if there was nobody to tell us
	case <-a.caller.Done():
		return "", a.giveUp(a.caller.Err())
	case <-a.expiry:
		return "", a.giveUp(errWaitOver)
	case <-e.closing:
		return "", a.giveUp(ErrClosed)
	}
	return "", nil
}

// giveBack sees to it, in the background, that the token takes nothing any more, neither by an unanswered call nor from the
// queue, and that what it may hold goes to the next.
func (a *acquisition) giveBack() {
	a.stopExpecting()
	if a.token.state == tokenNowhere {
		return
	}
	claim := a.claim
	claim.TombstoneTTL = calls.UndoFor(a.token.state == tokenUnclear, claim.TTL)
	lives := max(claim.TTL, claim.TombstoneTTL)
	if claim.Queue {
		lives = max(lives, calls.QueueLife)
	}
	a.engine.steps.Undo(calls.Chore{Claim: claim, Useless: time.Now().Add(lives)})
	a.token = token{}
}

// stopExpecting makes the post forget the token, which waits no more.
func (a *acquisition) stopExpecting() {
	if a.expected {
		a.expected = false
		a.engine.post.unregister(a.claim.Owner)
	}
}

// renewTicket goes on with another token: one token is one hold, and this one's time is over.
func (a *acquisition) renewTicket() {
	a.giveBack()
	a.own = ticket{holder: a.holder}
	a.ticket = &a.own
	a.prepare()
}

// handOver takes the ticket away from a, which knows no more than what it has seen.
func (a *acquisition) handOver() *ticket {
	t := a.ticket
	a.own.holder, a.own.place = t.holder, t.place
	a.ticket = &ticket{holder: t.holder, place: t.place}
	return t
}

// errNoAnswer: a call was abandoned.
var errNoAnswer = errors.New("no answer")
