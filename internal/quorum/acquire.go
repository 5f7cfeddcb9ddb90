package quorum

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// mostRounds is the largest number of rounds of one acquire. Another round is needed when the votes
// are split among contenders, so that no contender has a quorum.
const mostRounds = 3

// acquisition is one acquire. Its steps go on where the last answer arrives, so it has no goroutine.
type acquisition struct {
	*quorum
	ctx      context.Context
	claim    store.Claim
	ballot   *ballot
	onAnswer func(store.Grant, error)

	tally         *tally
	sentAt        time.Time
	rounds, trips int
}

// acquire asks all nodes for their votes. The key is granted when more than half of the nodes have
// voted for the token and agree on the fence.
func (q *quorum) acquire(ctx context.Context, c store.Claim, onAnswer func(store.Grant, error)) {
	q.asks.Store(true)
	b, ok := q.ballots.enter(c)
	if !ok {
		onAnswer(store.Grant{}, errUnderWay)
		return
	}
	a := &acquisition{quorum: q, ctx: ctx, claim: c, ballot: b, onAnswer: onAnswer}
	a.askForVotes()
}

// askForVotes begins a round.
func (a *acquisition) askForVotes() {
	ask, ok := a.ballot.begin(a.quorum)
	if !ok {
		a.ballot.end(a.quorum, false, true)
		a.onAnswer(store.Grant{State: store.Undone}, nil)
		return
	}
	a.rounds, a.trips, a.sentAt = a.rounds+1, a.trips+1, time.Now()
	t := newTally(a.quorum)
	a.tally = t
	for n := range a.eachNode(a.allNodes() &^ ask) {
		t.record(n.index, poll{}, errUnderWay)
	}
	r := a.newRequest(a.claim)
	gather(a.quorum, a.patience, ask, func(n *node, onAnswer func(poll, error)) {
		n.vote(a.ctx, r, func(p poll, err error) {
			a.ballot.record(n, p, err)
			onAnswer(p, err)
		})
	}, t.decided, func(i int, p poll, err error, late bool) {
		if !late {
			t.record(i, p, err)
		}
	}, a.agree)
}

// agree raises the votes to the largest fence among them, at each node that still has its vote. It
// raises the nodes' counters to the end of the block. The next holder's quorum has a node in common
// with this quorum, so the next fence is larger, whatever the clocks show.
func (a *acquisition) agree(nodes) {
	t := a.tally
	if !t.enough() || t.won() {
		a.end(0)
		return
	}
	a.trips++
	lower := t.in(store.Granted)
	fence, block := t.proposal(lower)
	for n := range a.eachNode(lower) {
		if t.polls[n.index].Fence == fence {
			lower = lower.minus(n.index)
		}
	}
	gather(a.quorum, a.patience, lower, func(n *node, onAnswer func(bool, error)) {
		n.confirm(a.ctx, a.claim, t.polls[n.index].minted, fence, block, onAnswer)
	}, t.won, func(i int, confirmed bool, err error, late bool) {
		switch p := &t.polls[i]; {
		case late:
		case err != nil:
			t.errs[i] = err
		case confirmed:
			p.Fence, p.FenceCount = fence, block // the node has reserved only the fences of this block
		default: // the vote has run out
			p.State = store.NotOurs
		}
	}, a.end)
}

// end ends a round. The nodes in unconfirmed have given votes that do not count.
func (a *acquisition) end(unconfirmed nodes) {
	t := a.tally
	for n := range a.eachNode(unconfirmed) {
		t.errs[n.index] = errSilent
	}
	g, err := t.result()
	if g.State == store.Busy && t.isSplit() && a.rounds < mostRounds {
		a.ballot.end(a.quorum, false, false)
		// Contenders pause for different times. A round trip later the votes are given back.
		took := time.Since(a.sentAt)
		time.AfterFunc(took+rand.N(took+time.Millisecond), a.askForVotes)
		return
	}
	clean, unclear := a.ballot.end(a.quorum, t.won(), true)
	if no, ok := errors.AsType[*store.Refusal](err); ok && unclear {
		err = no.Err // a Refusal would prove that nothing has happened, but a node may have the token
	}
	g.Rounds, g.Unsettled = a.trips, g.State == store.Busy && !clean
	if g.State == store.Busy && clean && !a.claim.Queue {
		a.ballots.drop(a.claim.Owner)
	}
	a.onAnswer(g, err)
}
