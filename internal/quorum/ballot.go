package quorum

import (
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// ballot has the state of one token at each node of a quorum. It exists from the first acquire
// until the release is decided, or for finishedFor longer: see finish. After the release is
// decided, only the calls that are still under way refer to the ballot: a late vote finds
// "releasing" here. At each node, any of these can be true:
//
//	asking       an acquire was sent, and has no answer yet
//	holds        the node has granted the acquire
//	unclear      an acquire may have run, or may still run; stays until the end of the ballot
//	queued       the node has the token in its queue
//	giving       the node's vote is being given back
//	released     the node has confirmed a release; there is one set for each kind of release
//
// When a round ends without a quorum, each node in "holds" gets a withdrawal of its vote at once.
// The node gets no acquire until it has confirmed the withdrawal. When the token is released, the
// nodes in "holds" and "unclear" get the release. At a node in "unclear", the release also sets a
// tombstone. A node in "asking" gets the release after its answer.
//
// No vote is given back while a round may count it. A round asks only nodes for which no call is
// under way, and votes are given back only between rounds.
type ballot struct {
	claim store.Claim   // the claim of the latest acquire
	life  time.Duration // the life of a vote

	mu         sync.Mutex
	asking     nodes             // nodes at which an acquire is under way
	giving     nodes             // nodes whose votes are being given back
	givingEnds time.Time         // the time at which all votes of the nodes in giving have expired
	holds      nodes             // nodes that have granted the token's lease
	unclear    nodes             // nodes at which an acquire is unclear
	queued     nodes             // nodes that have the token in their queues
	released   [3]nodes          // for each kind of release, the nodes that have confirmed one
	traces     nodes             // nodes that may have a trace of the token
	votes      [mostNodes]uint64 // for each node, the fence that it has made for its vote: it distinguishes the vote from later votes for the same token
	calm       chan struct{}     // closed when no call of an acquire is under way; nil while no caller waits in awaitAnswers
	rounds     int               // number of rounds under way
	won        bool              // a quorum has granted the acquire
	uncertain  bool              // the last round saw no quorum, but the unclear votes may complete a quorum
	releasing  bool              // the token is being released
	queuedAt   uint64            // score of the token in all queues: µs, fixed at the first round
	proposed   uint64            // the fence that the round proposes to the nodes
	proposedAt time.Time         // when this fence was first proposed
	forgetAt   time.Time         // the time after which no node has a trace of the token
}

// ballots has the ballots of the tokens in use.
type ballots struct {
	mu    sync.Mutex
	all   map[string]*ballot
	sweep int // when this many ballots exist, look for tokens that were never released
}

// open returns the ballot of c.Owner, and makes the ballot if there is none. The parameter life is
// how long a node keeps a vote.
func (bs *ballots) open(c store.Claim, life time.Duration) *ballot {
	now := time.Now()
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b := bs.all[c.Owner]
	if b == nil {
		if len(bs.all) >= max(bs.sweep, 1024) {
			for owner, b := range bs.all {
				if b.forgettable(now) {
					delete(bs.all, owner)
				}
			}
			bs.sweep = 2 * len(bs.all)
		}
		if bs.all == nil {
			bs.all = make(map[string]*ballot)
		}
		b = new(ballot)
		bs.all[c.Owner] = b
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claim, b.life = c, life
	b.prolong(now, c.TTL)
	return b
}

// get returns the ballot of the token owner, or nil when the token has no ballot.
func (bs *ballots) get(owner string) *ballot {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.all[owner]
}

// drop removes the ballot of the token owner.
func (bs *ballots) drop(owner string) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	delete(bs.all, owner)
}

// prolong makes the ballots of the renewed leases cs live longer.
func (bs *ballots) prolong(cs []store.Claim) {
	now := time.Now()
	for _, c := range cs {
		if b := bs.get(c.Owner); b != nil {
			b.mu.Lock()
			b.prolong(now, c.TTL)
			b.mu.Unlock()
		}
	}
}

// prolong keeps the ballot as long as a release of the token can have an effect, if its lease has
// ttl from now. The caller holds b.mu.
func (b *ballot) prolong(now time.Time, ttl time.Duration) {
	if forgetAt := now.Add(max(ttl, time.Minute) + calls.QueueLife); forgetAt.After(b.forgetAt) {
		b.forgetAt = forgetAt
	}
}

// finish is called when the token is not needed any more, because it was undone or its work is
// done. The ballot stays for finishedFor, because this process may have begun calls of the token
// that it has not sent yet.
func (b *ballot) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if end := time.Now().Add(finishedFor); end.Before(b.forgetAt) {
		b.forgetAt = end
	}
}

// finishedFor is how long the ballot of a finished token stays. It is much longer than the
// goroutine of an abandoned acquire needs to begin. If a goroutine begins even later, the nodes
// that knew the token refuse its acquire by their tombstones. The votes of other nodes end with
// their TTL, because no process renews them.
const finishedFor = 5 * time.Second

// forgettable reports whether, at the time now, no node has a trace of the token, so that the
// ballot can be dropped.
func (b *ballot) forgettable(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return now.After(b.forgetAt)
}

// proposalLife is how long repetitions of an acquire propose the same fence. During this time, a
// node may still receive the first proposal.
const proposalLife = time.Second

// isCalm reports whether no call of an acquire is under way.
func (b *ballot) isCalm() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asking|b.giving == 0
}

// awaitAnswers waits for the late answers to the previous round, but no longer than atMost. Only a
// node that has answered can be asked again, and can queue the token.
func (b *ballot) awaitAnswers(atMost time.Duration) {
	b.mu.Lock()
	if b.asking|b.giving == 0 {
		b.mu.Unlock()
		return
	}
	if b.calm == nil {
		b.calm = make(chan struct{})
	}
	calm := b.calm
	b.mu.Unlock()
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-calm:
	case <-timer.C:
	}
}

// begin begins a round. It returns the nodes to ask, the fence to propose, and the score in the
// queues. The result ok is false when the token is being released.
func (b *ballot) begin(q *quorum) (ask nodes, proposed, queuedAt uint64, ok bool) {
	now := uint64(q.clocks.now().UnixMicro())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.releasing {
		return 0, 0, 0, false
	}
	if b.giving != 0 && time.Now().After(b.givingEnds) {
		b.giving, b.holds = 0, b.holds&^b.giving
	}
	if b.proposed == 0 || b.asking|b.holds|b.unclear == 0 || time.Since(b.proposedAt) > proposalLife {
		b.proposed, b.proposedAt = now, time.Now()
	}
	if b.queuedAt == 0 {
		b.queuedAt = now
	}
	for i, n := range q.nodes {
		if !b.asking.has(i) && !b.giving.has(i) && !q.lags(n) {
			ask = ask.plus(i)
		}
	}
	b.asking |= ask
	b.traces |= ask
	b.rounds++
	b.uncertain = false
	return ask, b.proposed, b.queuedAt, true
}

// record records the answer (p, err) of node i to an acquire. It returns what to do with the
// node's vote, if it has one.
func (b *ballot) record(i int, p poll, err error) (fate voteFate) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asking = b.asking.minus(i)
	defer b.signalCalm()
	refused := isRefusal(err)
	switch {
	case err != nil && !refused:
		b.unclear = b.unclear.plus(i)
	case refused: // a refusal does not prove that earlier calls had no effect
		if !(b.holds | b.unclear | b.queued).has(i) {
			b.traces = b.traces.minus(i)
		}
	case p.State == store.Granted:
		b.holds, b.votes[i] = b.holds.plus(i), p.minted
	default:
		b.holds = b.holds.minus(i)
		if b.claim.Queue {
			b.queued = b.queued.plus(i)
		}
	}
	switch {
	case b.releasing && (b.holds | b.unclear | b.queued).has(i):
		return releaseVote
	case b.rounds > 0 || b.won || b.uncertain || !b.holds.has(i):
		return leaveVote
	}
	b.giving, b.givingEnds = b.giving.plus(i), time.Now().Add(b.life)
	return giveVoteBack
}

// voteFate is what must be done with the vote of a node. It is decided for every answer, in time or
// late: the ballot knows whether a round still counts it.
type voteFate int

const (
	leaveVote    voteFate = iota // there is no vote, or it counts
	releaseVote                  // send a release: the token was released meanwhile
	giveVoteBack                 // withdraw the vote: the round was lost
)

// end ends a round, and returns the nodes whose votes must be given back. The parameter won reports
// whether the round has a quorum, and uncertain whether the unclear votes may complete one.
//
// There can be two rounds at a time, because an abandoned acquire continues beside its repetition.
// If one of the two rounds has won the lease, the votes stay as long as a quorum of nodes may hold
// the lease. Each node has only one call at a time, so the node's state follows the order of its
// answers.
func (b *ballot) end(won, uncertain bool, need int) (giveBack nodes) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rounds--
	b.won = won || b.won && (b.holds|b.asking|b.unclear).count() >= need
	b.uncertain = uncertain
	if !b.won && !uncertain && !b.releasing && b.rounds == 0 {
		giveBack = b.holds &^ b.asking &^ b.giving
		b.giving, b.givingEnds = b.giving|giveBack, time.Now().Add(b.life)
	}
	return giveBack
}

// recordGivenBack records that node i has confirmed the withdrawal of its vote.
func (b *ballot) recordGivenBack(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.giving, b.holds = b.giving.minus(i), b.holds.minus(i)
	b.signalCalm()
}

// signalCalm ends the wait in awaitAnswers when no call is under way. The caller holds b.mu.
func (b *ballot) signalCalm() {
	if b.asking|b.giving == 0 && b.calm != nil {
		close(b.calm)
		b.calm = nil
	}
}

// plannedRelease are the sets of nodes for one release.
type plannedRelease struct {
	atOnce     nodes // nodes that get the release at once
	later      nodes // nodes that get it after their answer to the acquire
	tombstones nodes // nodes at which the release also sets a tombstone
	confirmed  nodes // nodes that have confirmed an earlier attempt of the same release, and get no other
}

// markReleasing marks the token as being released, and returns the nodes for the release c. If c is
// an undo, all nodes that may have a trace of the token get the release at once, with a tombstone.
func (b *ballot) markReleasing(c store.Claim) (p plannedRelease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.releasing = true
	p.confirmed = b.released[kindOf(&c)]
	switch {
	case c.TombstoneTTL > 0:
		p.atOnce, p.tombstones = b.traces, b.traces
	case b.claim.Queue:
		p.atOnce, p.tombstones, p.later = b.traces, b.unclear, b.asking
	default:
		p.atOnce, p.tombstones, p.later = (b.holds|b.unclear)&^b.giving, b.unclear, b.asking
	}
	p.later &^= p.confirmed
	p.atOnce &^= p.later | p.confirmed
	return p
}

// kindOf returns the kind of the release c. The repetition of a release is of the same kind; a node
// that has confirmed one kind may still need another one, for its tombstone or its done mark.
func kindOf(c *store.Claim) (kind int) {
	switch {
	case c.TombstoneTTL > 0:
		return 1
	case c.Complete:
		return 2
	}
	return 0
}

// recordReleased records that node i has confirmed the release c. If the release stays undecided,
// its repetition counts this node: asked again, the node would answer that the token has no lease.
func (b *ballot) recordReleased(i int, c *store.Claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kind := kindOf(c)
	b.released[kind] = b.released[kind].plus(i)
}

// settled reports whether no node has, or can still get, a vote for the token. The token may be in
// the nodes' queues.
func (b *ballot) settled() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asking|b.giving|b.holds|b.unclear == 0 && b.rounds == 0
}

// mayRemain reports whether a node may have the token, or may get it later, and keep it until a
// release removes it. The votes of a lost round do not count, because the round gives them back.
func (b *ballot) mayRemain() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asking|b.unclear|b.queued != 0
}

// lateRelease returns the claim that releases the vote of node i. It is used when the vote came
// after the release of its token.
func (b *ballot) lateRelease(i int) store.Claim {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.claim
	c.TombstoneTTL = calls.UndoFor(b.unclear.has(i), c.TTL)
	return c
}

// lostVote returns the claim that withdraws the vote of node i after a lost round. The result vote
// identifies the vote, because a late withdrawal must not end a later vote. The result expires is
// the time at which the vote expires. The token stays in the queue.
func (b *ballot) lostVote(i int) (c store.Claim, vote uint64, expires time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c = store.Claim{Key: b.claim.Key, Owner: b.claim.Owner, TTL: b.claim.TTL, Inbox: b.claim.Inbox}
	return c, b.votes[i], b.givingEnds
}
