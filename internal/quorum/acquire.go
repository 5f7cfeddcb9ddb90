package quorum

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

const (
	// mostRounds is the largest number of rounds of one acquire. Another round is needed when the
	// votes are split among contenders, so that no contender has a quorum.
	mostRounds = 3
	// lateAnswerWait is how long an acquire waits for late answers to an earlier round of the same
	// token, because a node without an answer cannot be asked.
	lateAnswerWait = 5 * time.Millisecond
)

// acquiring is an acquire that is under way.
type acquiring struct {
	quorum   *quorum
	ctx      context.Context
	claim    store.Claim
	ballot   *ballot
	onAnswer func(store.Grant, error)
	rounds   int
	trips    int  // how many round trips the rounds needed
	retried  bool // a round was repeated so that nodes can begin their waits
}

// beginAcquire asks all nodes for their votes, and passes the result to onAnswer, on any goroutine.
func (q *quorum) beginAcquire(ctx context.Context, c store.Claim, onAnswer func(store.Grant, error)) {
	if !q.asks.Load() {
		q.asks.Store(true)
	}
	b, ok := q.ballots.enter(c, c.TTL+2*q.skew)
	if !ok {
		onAnswer(store.Grant{}, errUnderWay)
		return
	}
	a := &acquiring{quorum: q, ctx: ctx, claim: c, ballot: b, onAnswer: onAnswer}
	a.nextRound(0)
}

// nextRound begins a round when the answers to the rounds before it have come, at the latest after
// lateAnswerWait. The parameter waited is how long it has waited already.
func (a *acquiring) nextRound(waited time.Duration) {
	if waited < lateAnswerWait && a.ballot.awaitsAnswers() {
		time.AfterFunc(time.Millisecond, func() { a.nextRound(waited + time.Millisecond) })
		return
	}
	q := a.quorum
	ask, hint, timed, ok := a.ballot.begin(q, a.retried)
	if !ok {
		a.ballot.end(q, false, true)
		a.onAnswer(store.Grant{State: store.Undone}, nil)
		return
	}
	a.rounds++
	a.trips++
	r := &round{tally: newTally(q), acquiring: a, sentAt: time.Now()}
	for i, n := range q.nodes {
		switch {
		case ask.has(i):
		case q.lags(n):
			r.record(i, poll{}, errLags)
		default:
			r.record(i, poll{}, errUnderWay)
		}
	}
	req := q.newRequest(a.claim, hint, timed)
	g := &gather[poll]{quorum: q, decided: r.decided, end: r.finish, take: func(n *node, p poll, err error) { r.record(n.index, p, err) }}
	g.start(ask, func(n *node, onAnswer func(poll, error)) {
		n.vote(a.ctx, req, func(p poll, err error) {
			a.ballot.record(n, p, err)
			onAnswer(p, err)
		})
	})
}

// round is one attempt to collect the votes of a quorum.
type round struct {
	*tally
	*acquiring
	sentAt time.Time
}

// finish makes the votes agree on a fence, and then ends the round.
func (r *round) finish() {
	if !r.enough() || r.won() {
		r.conclude()
		return
	}
	r.trips++
	r.agree()
}

// agree raises the votes to the largest fence among them, at each node that still has its vote. It
// raises the nodes' counters to the end of the block. The next holder's quorum has a node in common
// with this quorum, so the next fence is larger, whatever the clocks show.
func (r *round) agree() {
	q, t := r.tally.quorum, r.tally
	fence, block := t.proposal()
	var lower nodes
	for i := range q.nodes {
		if t.granted(i) && t.polls[i].Fence != fence {
			lower = lower.plus(i)
		}
	}
	g := &gather[bool]{quorum: q, decided: t.won, take: func(n *node, confirmed bool, err error) {
		switch p := &t.polls[n.index]; {
		case err != nil:
			t.errs[n.index] = err
		case confirmed:
			p.Fence, p.FenceCount = fence, block // the node has reserved only the fences of this block
		default: // the vote has run out
			p.State = store.NotOurs
		}
	}}
	g.end = func() {
		for n := range q.eachNode(g.open) { // a vote whose confirmation has no answer does not count
			t.errs[n.index] = errSilent
		}
		r.conclude()
	}
	g.start(lower, func(n *node, onAnswer func(bool, error)) {
		n.confirm(r.ctx, r.claim, t.polls[n.index].minted, fence, block, onAnswer)
	})
}

// conclude ends the round. It begins another one if the votes were split, or if nodes can now begin
// their waits; otherwise it ends the acquire.
func (r *round) conclude() {
	a, q, b := r.acquiring, r.tally.quorum, r.ballot
	g, err := r.result()
	split := err == nil && g.State == store.Busy && (r.isSplit() || r.maySplit()) && a.rounds < mostRounds
	begins := err != nil && !a.retried && r.mayBeginWaits()
	if split || begins {
		a.retried = a.retried || begins
		b.end(q, false, false)
		pause := time.Duration(0)
		if split { // contenders pause for different times
			pause = time.Millisecond/2 + rand.N(time.Since(r.sentAt)+time.Millisecond)
		}
		time.AfterFunc(pause, func() { a.nextRound(0) })
		return
	}
	if no, ok := errors.AsType[*store.Refusal](err); ok && b.mayRemain() {
		err = no.Err // a Refusal would prove that nothing has happened, but a node may have the token
	}
	clean := b.end(q, r.won(), true)
	g.Rounds = a.trips
	if err == nil && g.State == store.Busy {
		if g.Unsettled = !clean; clean && !r.claim.Queue {
			q.ballots.drop(r.claim.Owner)
		}
	}
	a.onAnswer(g, err)
}
