package quorum

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker/store"
)

// mostRounds bounds how often votes are collected anew within one acquire, when contenders have
// split them and nobody won.
const mostRounds = 3

// soon is how long an acquire waits for the late answers to an earlier one of the same token.
const soon = 5 * time.Millisecond

// Acquire asks all nodes for their votes. It is granted when more than half of them gave it theirs
// and agree on the fence.
func (q *quorum) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	ctx = lasting(ctx)
	b := q.ballots.open(c)
	total, tended := 0, false
	for round := 1; ; round++ {
		t, ok := q.round(ctx, b, c)
		total += t.rounds
		if !ok {
			return store.Grant{State: store.Undone}, nil
		}
		g, err := t.result()
		g.Rounds = total
		if r := q.roster(c.Key); err != nil && !tended && r.voting() < q.need {
			tended = true
			r.tended(ctx)
			if r.voting() >= q.need { // the nodes have come back
				continue
			}
			t, _ = q.round(ctx, b, c) // they say now why they do not vote
			t.after = r.left()
			g, err = t.result()
		}
		if no, ok := errtype.As[*store.Refusal](err); ok && b.remains() {
			err = no.Err // a Refusal says that nothing was done; but a node has the token in its queue
		}
		if err != nil || g.State != store.Busy {
			return g, err
		}
		if (t.split() || t.tied()) && round < mostRounds {
			time.Sleep(time.Millisecond/2 + rand.N(t.took+time.Millisecond)) //nolint:forbidigo // others do the same, for as long as it takes them
			continue
		}
		if b.settled() {
			if !c.Queue {
				q.ballots.drop(c.Owner)
			}
		} else {
			g.Unsettled = true
		}
		return g, nil
	}
}

// round collects votes once. False: the token is being released.
func (q *quorum) round(ctx context.Context, b *ballot, c store.Claim) (t *tally, ok bool) {
	b.await(soon)
	ask, hint, ticket, ok := b.begin(q)
	t = newTally(q)
	if !ok {
		return t, false
	}
	for i, n := range q.nodes {
		switch {
		case ask.has(i):
		case q.behind(n):
			t.hear(i, poll{}, errBehind)
		default:
			t.hear(i, poll{}, errOwnWay)
		}
	}
	sent := time.Now()
	t.rounds = 1
	a := q.appeal(c, hint, ticket)
	f := fanOut(q, ask, isVote, func(n *node) (poll, error) {
		p, err := n.acquire(ctx, a)
		if p.NotListening {
			n.deaf(a.claim.Key)
		}
		q.afterwards(ctx, n, b, b.heard(n.index, p, err))
		return p, err
	})
	for !t.decided() {
		a, ok := f.next()
		if !ok {
			break
		}
		t.hear(a.node, a.value, a.err)
		if t.enough() { // what is there already may make them agree
			for a, ok := f.ready(); ok && !t.won(); a, ok = f.ready() {
				t.hear(a.node, a.value, a.err)
			}
			break
		}
	}
	f.done()
	if t.enough() && !t.won() {
		t.rounds++
		q.agree(ctx, c, t)
	}
	t.took = time.Since(sent)
	for n := range q.each(b.end(t.won(), t.uncertain(), q.need)) {
		q.calls.Do(func() { q.giveBack(ctx, n, b) })
	}
	return t, true
}

// isVote says whether a node has said who has its vote. It takes a quorum of such answers to decide
// anything.
func isVote(p poll, err error) bool {
	return err == nil && (p.State == store.Granted || p.State == store.Busy)
}

// agree raises the votes to the largest fence among them. With it, and only where the vote is still
// the same, the counter is raised over the whole block: so whoever is granted the key next, by a
// quorum that shares a node with this one, gets a larger fence. No clock is needed for that.
func (q *quorum) agree(ctx context.Context, c store.Claim, t *tally) {
	fence, block := t.proposal() // of the votes that are enough
	var lower nodes
	for i := range q.nodes {
		if t.votes(i) && t.polls[i].Fence != fence {
			lower = lower.with(i)
		}
	}
	f := fanOut(q, lower, nil, func(n *node) (bool, error) {
		return n.confirm(ctx, c, t.polls[n.index], fence, block)
	})
	defer f.done()
	for !t.won() {
		a, ok := f.next()
		if !ok {
			break
		}
		switch {
		case a.err != nil:
			t.errs[a.node] = a.err
		case a.value:
			t.polls[a.node].Fence, t.polls[a.node].FenceCount = fence, block // its counter covers no more
		default: // it ran out meanwhile
			t.polls[a.node].State = store.NotOurs
		}
	}
	for i := range q.nodes { // whose confirmation is not known cannot be counted
		if f.open.has(i) && t.polls[i].Fence != fence {
			t.errs[i] = errSilent
		}
	}
}

// afterwards does with a late vote what must be done.
func (q *quorum) afterwards(ctx context.Context, n *node, b *ballot, fate afterwards) {
	switch fate {
	case leaveIt:
	case giveItBack:
		q.giveBack(ctx, n, b)
	case releaseIt:
		c := b.farewell(n.index)
		if _, err := n.release(lasting(ctx), c); err != nil {
			n.clean(c)
		}
	}
}

// giveBack frees a node from the vote that a lost round has left there. It wakes nobody: who was
// refused because of it tries again by itself, and all who are woken would split the votes again.
// The node is not asked again before it has confirmed; a repetition that comes later still finds
// another vote, if any.
func (q *quorum) giveBack(ctx context.Context, n *node, b *ballot) {
	c, vote := b.lost(n.index)
	over := time.Now().Add(c.TTL)
	for pause := range calls.BetweenRepeats {
		_, err := n.take(lasting(ctx), c, taking{vote: vote, hush: true})
		if err == nil || time.Now().After(over) { // or it has run out by itself
			break
		}
		select {
		case <-time.After(pause):
		case <-q.closing:
			over = time.Time{}
		}
	}
	b.given(n.index)
}
