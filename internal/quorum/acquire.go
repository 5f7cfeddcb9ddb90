package quorum

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/locker/store"
)

// mostRounds is the largest number of rounds of one acquire. Another round is needed when the
// votes are split among contenders, so that no contender has a quorum.
const mostRounds = 3

// soon is how long an acquire waits for late answers to an earlier acquire of the same token.
const soon = 5 * time.Millisecond

// Acquire asks all nodes for their votes. The key is granted when more than half of the nodes have
// voted for the token and agree on the fence.
func (q *quorum) Acquire(ctx context.Context, c store.Claim) (store.Grant, error) {
	return calls.Await(ctx, c, q.StartAcquire)
}

// StartAcquire does the work of Acquire, but returns at once. If the votes of the first round
// decide the acquire, the goroutine that brings the last vote calls the function answered.
// Otherwise the acquire continues on a new goroutine.
func (q *quorum) StartAcquire(ctx context.Context, c store.Claim, answered func(store.Grant, error)) {
	ctx = context.WithoutCancel(ctx)
	b := q.ballots.open(c, c.TTL+2*q.skew)
	if !b.isCalm() {
		q.nodes[0].links.Go(func() { answered(q.acquire(ctx, c, b, q.round(ctx, b, c))) })
		return
	}
	q.startRound(ctx, b, c, func(r *round) {
		if !r.won() {
			q.nodes[0].links.Go(func() { answered(q.acquire(ctx, c, b, r.count(ctx))) })
			return
		}
		g, err := r.count(ctx).result()
		g.Rounds = 1
		answered(g, err)
	})
}

// acquire does the rest of an acquire after its first round, whose tally is t.
func (q *quorum) acquire(ctx context.Context, c store.Claim, b *ballot, t *tally) (store.Grant, error) {
	total, tended := 0, false
	for round := 1; ; round++ {
		if t == nil {
			return store.Grant{State: store.Undone}, nil
		}
		total += t.rounds
		g, err := t.result()
		g.Rounds = total
		if r := q.roster(c.Key); err != nil && !tended && r.voting() < q.need {
			tended = true
			r.tended(ctx)
			if t = q.round(ctx, b, c); t != nil { // the errors of this round explain why the nodes do not vote
				t.after = r.left()
			}
			continue
		}
		if no, ok := errtype.As[*store.Refusal](err); ok && b.remains() {
			err = no.Err // a Refusal would prove that nothing has happened, but a node may have the token
		}
		if err == nil && g.State == store.Done {
			b.finished()
		}
		if err != nil || g.State != store.Busy {
			return g, err
		}
		if (t.split() || t.tied()) && round < mostRounds {
			time.Sleep(time.Millisecond/2 + rand.N(t.took+time.Millisecond)) //nolint:forbidigo // contenders pause for different times
			t = q.round(ctx, b, c)
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

// round is one attempt to collect the votes of a quorum.
type round struct {
	*tally
	claim store.Claim
	votes taker[poll]
	sent  time.Time
	of    *ballot
	open  bool // the ballot has admitted the round; false: the token is being released
}

// round collects votes once, and waits for them. It returns nil when the token is being released.
func (q *quorum) round(ctx context.Context, b *ballot, c store.Claim) *tally {
	b.await(soon)
	decided := make(chan *round, 1)
	q.startRound(ctx, b, c, func(r *round) { decided <- r })
	return (<-decided).count(ctx)
}

// startRound begins to collect votes. When further votes cannot change the result, it calls the
// function decided, on any goroutine. This function must not wait.
func (q *quorum) startRound(ctx context.Context, b *ballot, c store.Claim, decided func(*round)) {
	r := &round{tally: newTally(q), claim: c, of: b}
	r.votes.take = func(a answer[poll]) { r.record(a.node, a.value, a.err) }
	r.votes.decided = func(more bool) bool { // if votes must be raised to one fence, first take all votes that have arrived
		return r.decided() && (!more || !r.enough() || r.won())
	}
	r.votes.end = func() { decided(r) }
	var ask nodes
	var hint, ticket uint64
	if ask, hint, ticket, r.open = b.begin(q); !r.open {
		decided(r)
		return
	}
	for i, n := range q.nodes {
		switch {
		case ask.has(i):
		case q.behind(n):
			r.record(i, poll{}, errBehind)
		default:
			r.record(i, poll{}, errOwnWay)
		}
	}
	r.sent, r.rounds = time.Now(), 1
	a := q.appeal(c, hint, ticket)
	r.votes.start(q, ask, isVote, func(n *node, answered func(poll, error)) {
		n.acquire(ctx, a, func(p poll, err error) {
			if p.NotListening {
				n.links.Go(func() { n.resubscribe(c.Key) })
			}
			q.afterwards(n, b, b.record(n.index, p, err))
			answered(p, err)
		})
	})
}

// count ends a round and returns its tally, or nil when the token is being released.
func (r *round) count(ctx context.Context) *tally {
	if !r.open {
		return nil
	}
	q, t := r.quorum, r.tally
	if t.enough() && !t.won() {
		t.rounds++
		q.agree(ctx, r.claim, t)
	}
	t.took = time.Since(r.sent)
	for n := range q.each(r.of.end(t.won(), t.uncertain(), q.need)) {
		q.giveBack(n, r.of)
	}
	return t
}

// isVote reports whether an answer shows which token has the node's vote. A single such answer
// does not decide a round.
func isVote(p poll, err error) bool {
	return err == nil && (p.State == store.Granted || p.State == store.Busy)
}

// agree raises the votes to the largest fence among them, at each node that still has the vote. It
// raises the nodes' counters to the end of the block. The next holder's quorum has a node in common
// with this quorum, so the next fence is larger, whatever the clocks show.
func (q *quorum) agree(ctx context.Context, c store.Claim, t *tally) {
	fence, block := t.proposal()
	var lower nodes
	for i := range q.nodes {
		if t.votes(i) && t.polls[i].Fence != fence {
			lower = lower.with(i)
		}
	}
	f := fanOut(q, lower, nil, func(n *node, answered func(bool, error)) {
		n.confirm(ctx, c, t.polls[n.index], fence, block, answered)
	})
	defer f.done()
	for !t.won() {
		a, ok := f.next()
		if !ok {
			break
		}
		switch p := &t.polls[a.node]; {
		case a.err != nil:
			t.errs[a.node] = a.err
		case a.value:
			p.Fence, p.FenceCount = fence, block // the node has reserved only the fences of this block
		default: // the vote has run out
			p.State = store.NotOurs
		}
	}
	for i := range q.nodes { // a vote whose confirmation has no answer does not count
		if f.open.has(i) && t.polls[i].Fence != fence {
			t.errs[i] = errSilent
		}
	}
}

// afterwards handles a vote that came too late for its round: it gives the vote back, or sends a
// release.
func (q *quorum) afterwards(n *node, b *ballot, fate afterwards) {
	switch fate {
	case leaveIt:
	case giveItBack:
		q.giveBack(n, b)
	case releaseIt:
		n.clean(b.farewell(n.index))
	}
}

// giveBack withdraws the vote of a lost round at a node. It notifies no waiter, because the refused
// contenders ask again anyway. If all waiters were notified at once, they would split the votes
// again. The node gets no other acquire of the token before it has confirmed the withdrawal. A late
// repetition of the withdrawal finds another vote and has no effect.
func (q *quorum) giveBack(n *node, b *ballot) {
	c, vote, useless := b.lost(n.index)
	n.links.Chore(c.Key, link.Chore{Useless: useless, Try: func(done func(link.Outcome, error)) {
		n.withdraw(context.Background(), c, withdrawal{vote: vote, hush: true}, func(_ store.Grant, err error) {
			if err == nil {
				b.given(n.index)
			}
			done(calls.OutcomeOf(err), err)
		})
	}})
}
