package quorum

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// mostRounds is the largest number of rounds of one acquire. Another round is needed when the votes
// are split among contenders, so that no contender has a quorum.
const mostRounds = 3

// lateAnswerWait is how long an acquire waits for late answers to an earlier acquire of the same
// token.
const lateAnswerWait = 5 * time.Millisecond

// beginAcquire asks all nodes for their votes, and passes the result to onAnswer. If the votes of
// the first round decide the acquire, the goroutine that brings the last vote calls onAnswer.
// Otherwise the acquire continues on a goroutine of the quorum.
func (q *quorum) beginAcquire(ctx context.Context, c store.Claim, onAnswer func(store.Grant, error)) {
	if !q.asks.Load() {
		q.asks.Store(true)
	}
	b := q.ballots.open(c, c.TTL+2*q.skew)
	if !b.isCalm() {
		q.pool.Do(func() { onAnswer(q.acquire(ctx, c, b, q.round(ctx, b, c))) })
		return
	}
	q.startRound(ctx, b, c, func(r *round) {
		if !r.won() {
			q.pool.Do(func() { onAnswer(q.acquire(ctx, c, b, r.conclude(ctx))) })
			return
		}
		g, err := r.conclude(ctx).result()
		g.Rounds = 1
		onAnswer(g, err)
	})
}

// acquire does the rest of the acquire of c after its first round, whose tally is t. It returns the
// grant or the error of the whole acquire.
func (q *quorum) acquire(ctx context.Context, c store.Claim, b *ballot, t *tally) (store.Grant, error) {
	total, tended := 0, false
	for round := 1; ; round++ {
		if t == nil {
			return store.Grant{State: store.Undone}, nil
		}
		total += t.trips
		g, err := t.result()
		g.Rounds = total
		if r := q.roster(c.Key); err != nil && !tended && (r.voting() < q.need || t.isOutdated()) {
			tended = true
			r.awaitTend(ctx)
			if t = q.round(ctx, b, c); t != nil { // the errors of this round explain why the nodes do not vote
				t.retryAfter = r.timeToQuorum()
			}
			continue
		}
		if no, ok := errors.AsType[*store.Refusal](err); ok && b.mayRemain() {
			err = no.Err // a Refusal would prove that nothing has happened, but a node may have the token
		}
		if err == nil && g.State == store.Done {
			b.finish()
		}
		if err != nil || g.State != store.Busy {
			return g, err
		}
		if (t.isSplit() || t.maySplit()) && round < mostRounds {
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
	claim    store.Claim
	answers  taker[poll]
	sentAt   time.Time
	ballot   *ballot
	admitted bool // the ballot has admitted the round; false if the token is being released
}

// round collects votes for c once, waits for them, and returns the tally. It returns nil when the
// token is being released.
func (q *quorum) round(ctx context.Context, b *ballot, c store.Claim) *tally {
	b.awaitAnswers(lateAnswerWait)
	decided := make(chan *round, 1)
	q.startRound(ctx, b, c, func(r *round) { decided <- r })
	return (<-decided).conclude(ctx)
}

// startRound begins to collect votes for c. When further votes cannot change the result, it calls
// onDecided with the round, on any goroutine. The function onDecided must not wait.
func (q *quorum) startRound(ctx context.Context, b *ballot, c store.Claim, onDecided func(*round)) {
	r := &round{tally: newTally(q), claim: c, ballot: b}
	r.answers.take = func(a answer[poll]) { r.record(a.node, a.value, a.err) }
	// If votes must be raised to one fence, the round first takes all votes that have arrived: a
	// vote that has arrived may complete one fence, and so save the round trip of agree.
	r.answers.decided = func(more bool) bool {
		return r.decided() && (!more || !r.enough() || r.won())
	}
	r.answers.end = func() { onDecided(r) }
	var ask nodes
	var hint, ticket uint64
	if ask, hint, ticket, r.admitted = b.begin(q); !r.admitted {
		onDecided(r)
		return
	}
	for i, n := range q.nodes {
		switch {
		case ask.has(i):
		case q.lags(n):
			r.record(i, poll{}, errLags)
		default:
			r.record(i, poll{}, errUnderWay)
		}
	}
	r.sentAt, r.trips = time.Now(), 1
	a := q.newAppeal(c, hint, ticket)
	r.answers.start(q, ask, showsVote, func(n *node, onAnswer func(poll, error)) {
		n.acquire(ctx, a, func(p poll, err error) {
			if p.NotListening {
				n.links.Pool.Do(func() { n.resubscribe(c.Key) })
			}
			q.settleVote(n, b, b.record(n.index, p, err))
			onAnswer(p, err)
		})
	})
}

// conclude ends the round: it makes the votes agree on a fence, which may wait for the nodes, and
// gives back the votes of a lost round. It returns the tally, or nil when the token is being
// released.
func (r *round) conclude(ctx context.Context) *tally {
	if !r.admitted {
		return nil
	}
	q, t := r.quorum, r.tally
	if t.enough() && !t.won() {
		t.trips++
		q.agree(ctx, r.claim, t)
	}
	t.took = time.Since(r.sentAt)
	for n := range q.eachNode(r.ballot.end(t.won(), t.uncertain(), q.need)) {
		q.giveBack(n, r.ballot)
	}
	return t
}

// showsVote reports whether the answer (p, err) shows which token has the node's vote. A single
// such answer does not decide a round.
func showsVote(p poll, err error) bool {
	return err == nil && (p.State == store.Granted || p.State == store.Busy)
}

// agree raises the votes of t to the largest fence among them, at each node that still has its
// vote, and records the results in t. It raises the nodes' counters to the end of the block. The
// next holder's quorum has a node in common with this quorum, so the next fence is larger, whatever
// the clocks show.
func (q *quorum) agree(ctx context.Context, c store.Claim, t *tally) {
	fence, block := t.proposal()
	var lower nodes
	for i := range q.nodes {
		if t.voteCounts(i) && t.polls[i].Fence != fence {
			lower = lower.plus(i)
		}
	}
	f := fanOut(q, lower, nil, func(n *node, onAnswer func(bool, error)) {
		n.confirm(ctx, c, t.polls[n.index], fence, block, onAnswer)
	})
	defer f.stop()
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

// settleVote executes fate, what the ballot has decided about the vote of node n. It is called for
// every answer, in time or late: the ballot knows whether a round still counts it.
func (q *quorum) settleVote(n *node, b *ballot, fate voteFate) {
	switch fate {
	case leaveVote:
	case giveVoteBack:
		q.giveBack(n, b)
	case releaseVote:
		n.repeatRelease(b.lateRelease(n.index))
	}
}

// giveBack withdraws the vote that node n gave in a lost round of b. It notifies no waiter, because
// the refused contenders ask again anyway. If all waiters were notified at once, they would split
// the votes again. The node gets no other acquire of the token before it has confirmed the
// withdrawal. A late repetition of the withdrawal finds another vote and has no effect. The calls
// have the class Release, because rivals wait for this vote.
func (q *quorum) giveBack(n *node, b *ballot) {
	c, vote, useless := b.lostVote(n.index)
	n.links.Repeat(calls.Chore{Claim: c, Useless: useless, Try: func(c store.Claim, onAnswer func(store.Grant, error)) {
		n.release(context.Background(), c, releaseArgs{vote: vote, hush: true}, func(g store.Grant, err error) {
			if err == nil {
				b.recordGivenBack(n.index)
			}
			onAnswer(g, err)
		})
	}})
}
