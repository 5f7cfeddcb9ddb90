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

// Acquire asks all nodes for their votes. The key is granted when more than half of the nodes have
// voted for the token and agree on the fence.
func (q *quorum) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	if !q.asks.Load() {
		q.asks.Store(true)
	}
	b, ok := q.ballots.enter(q, c)
	if !ok {
		return store.Grant{}, errUnderWay
	}
	trips := 0
	for rounds := 1; ; rounds++ {
		sentAt := time.Now()
		ask, ok := b.begin(q)
		if !ok {
			b.end(q, false, true)
			return store.Grant{State: store.Undone}, nil
		}
		trips++
		t := q.askForVotes(ctx, b, ask)
		if t.enough() && !t.won() {
			trips++
			q.agree(ctx, c, t)
		}
		g, err := t.result()
		if g.State == store.Busy && t.isSplit() && rounds < mostRounds {
			b.end(q, false, false)
			// Contenders pause for different times.
			<-time.After(time.Millisecond/2 + rand.N(time.Since(sentAt)+time.Millisecond))
			continue
		}
		clean, unclear := b.end(q, t.won(), true)
		if no, ok := errors.AsType[*store.Refusal](err); ok && unclear {
			err = no.Err // a Refusal would prove that nothing has happened, but a node may have the token
		}
		g.Rounds, g.Unsettled = trips, g.State == store.Busy && !clean
		if g.State == store.Busy && clean && !c.Queue {
			q.ballots.drop(c.Owner)
		}
		return g, err
	}
}

// askForVotes asks the nodes in ask for their votes, and counts the answers.
func (q *quorum) askForVotes(ctx context.Context, b *ballot, ask nodes) *tally {
	t := newTally(q)
	for n := range q.eachNode(q.allNodes() &^ ask) {
		t.record(n.index, poll{}, errUnderWay)
	}
	r := q.newRequest(b.claim)
	gather(q, q.patience, ask, func(n *node, onAnswer func(poll, error) bool) {
		n.vote(ctx, r, func(p poll, err error) {
			b.record(n, p, err)
			onAnswer(p, err)
		})
	}, t.decided, t.record)
	return t
}

// agree raises the votes to the largest fence among them, at each node that still has its vote. It
// raises the nodes' counters to the end of the block. The next holder's quorum has a node in common
// with this quorum, so the next fence is larger, whatever the clocks show.
func (q *quorum) agree(ctx context.Context, c store.Claim, t *tally) {
	lower := t.in(store.Granted)
	fence, block := t.proposal(lower)
	for n := range q.eachNode(lower) {
		if t.polls[n.index].Fence == fence {
			lower = lower.minus(n.index)
		}
	}
	open := gather(q, q.patience, lower, func(n *node, onAnswer func(bool, error) bool) {
		n.confirm(ctx, c, t.polls[n.index].minted, fence, block, onAnswer)
	}, t.won, func(i int, confirmed bool, err error) {
		switch p := &t.polls[i]; {
		case err != nil:
			t.errs[i] = err
		case confirmed:
			p.Fence, p.FenceCount = fence, block // the node has reserved only the fences of this block
		default: // the vote has run out
			p.State = store.NotOurs
		}
	})
	for n := range q.eachNode(open) { // a vote whose confirmation has no answer does not count
		t.errs[n.index] = errSilent
	}
}
