package quorum

import (
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/store"
)

// ballot has the votes of one token. It exists from the first acquire until the release is decided.
// After that, only the calls that are still under way refer to it: a late vote finds "releasing"
// here. At each node, any of these can be true:
//
//	asking   an acquire was sent, and has no answer yet
//	holds    the node has given its vote
//	unclear  an acquire may have run, or may still run; stays until the end of the ballot
//	giving   the vote of a lost round is being given back
//
// When a round ends without a quorum, each node in "holds" gets a withdrawal of its vote at once. The
// node gets no acquire until it has confirmed the withdrawal. When the token is released, the nodes
// in "holds" and "unclear" get the release. At a node in "unclear", the release also sets a
// tombstone. A node in "asking" gets the release after its answer.
//
// No vote is given back while a round may count it. A round asks only nodes for which no call is
// under way, a token has one round at a time, and votes are given back only between rounds.
type ballot struct {
	claim store.Claim   // the claim of the latest acquire
	life  time.Duration // the life of a vote

	mu         sync.Mutex
	asking     nodes
	holds      nodes
	unclear    nodes
	giving     nodes
	votes      [mostNodes]uint64 // for each node, the fence that it has made for its vote: it distinguishes the vote from later votes for the same token
	givingEnds time.Time         // the time at which all votes of the nodes in giving have expired
	busy       bool              // an acquire of the token is under way
	won        bool              // a quorum has granted the token's acquire, so its votes stay until the release
	releasing  bool              // the token is being released
	released   nodes             // nodes that have confirmed a release of the kind releasedAs
	releasedAs releaseKind
	proposed   uint64    // the fence that the round proposes to the nodes
	proposedAt time.Time // when this fence was first proposed
	forgetAt   time.Time // the time after which the ballot may be dropped: then the release goes to all nodes
}

// ballots has the ballots of the tokens in use.
type ballots struct {
	mu    sync.Mutex
	all   map[string]*ballot
	sweep int // when this many ballots exist, look for tokens that were never released
}

// enter returns the ballot of c.Owner for an acquire that begins, and makes the ballot if there is
// none. The parameter life is how long a node keeps a vote. The result ok is false while another
// acquire of the token is under way.
func (bs *ballots) enter(c store.Claim, life time.Duration) (b *ballot, ok bool) {
	now := time.Now()
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if b = bs.all[c.Owner]; b == nil {
		if len(bs.all) >= max(bs.sweep, 1024) {
			for owner, b := range bs.all {
				b.mu.Lock()
				if now.After(b.forgetAt) {
					delete(bs.all, owner)
				}
				b.mu.Unlock()
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
	if b.busy {
		return b, false
	}
	b.claim, b.life, b.busy = c, life, true
	b.forgetAt = now.Add(max(c.TTL, time.Minute) + calls.QueueLife)
	return b, true
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

// undone is called when the token was undone. Its ballot stays for a while, so that no acquire of
// the token can begin that its caller has given up already.
func (b *ballot) undone() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forgetAt = time.Now().Add(calls.Timeout)
}

// proposalLife is how long repetitions of an acquire propose the same fence. During this time, a
// node may still receive the first proposal.
const proposalLife = time.Second

// begin begins a round. It returns the nodes to ask, and the fence to propose. The result timed is
// true if the proposal is the present time by the clocks of a majority, as far as they were
// measured; the parameter anew asks for such a proposal. The result ok is false when the token is
// being released.
func (b *ballot) begin(q *quorum, anew bool) (ask nodes, proposed uint64, timed, ok bool) {
	now := time.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.releasing {
		return 0, 0, false, false
	}
	if b.giving != 0 && now.After(b.givingEnds) {
		b.giving, b.holds = 0, b.holds&^b.giving
	}
	if anew || b.proposed == 0 || b.asking|b.holds|b.unclear == 0 || now.Sub(b.proposedAt) > proposalLife {
		timed = q.clocks.known(q.need)
		b.proposed, b.proposedAt = uint64(q.clocks.now().UnixMicro()), now
	}
	for i, n := range q.nodes {
		if !(b.asking | b.giving).has(i) && !q.lags(n) {
			ask = ask.plus(i)
		}
	}
	b.asking |= ask
	return ask, b.proposed, timed, true
}

// awaitsAnswers reports whether a node cannot be asked, because its answer is missing.
func (b *ballot) awaitsAnswers() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asking|b.giving != 0
}

// record records the answer (p, err) of node n to an acquire. A vote that cannot count any more is
// given back, or released if the token was released meanwhile. A refusal does not prove that
// earlier calls had no effect.
func (b *ballot) record(n *node, p poll, err error) {
	b.mu.Lock()
	i := n.index
	b.asking = b.asking.minus(i)
	switch {
	case err == nil && p.State == store.Granted:
		b.holds, b.votes[i] = b.holds.plus(i), p.minted
	case err == nil:
		b.holds = b.holds.minus(i)
	case !isRefusal(err):
		b.unclear = b.unclear.plus(i)
	}
	late := b.releasing && (b.holds | b.unclear).has(i)
	lost := !late && !b.busy && !b.won && b.holds.has(i)
	if lost {
		b.giving, b.givingEnds = b.giving.plus(i), time.Now().Add(b.life)
	}
	c := b.claim
	c.TombstoneTTL = calls.UndoFor(b.unclear.has(i), c.TTL)
	b.mu.Unlock()
	if late {
		n.repeatRelease(c)
	} else if lost {
		b.giveBack(n)
	}
}

// end ends a round. If the round was lost, it gives the votes of the token back. If the round is the
// last one, it ends the acquire, and a vote that comes later is given back too. The result clean is
// true if no node has a vote, or may get one.
func (b *ballot) end(q *quorum, won, last bool) (clean bool) {
	b.mu.Lock()
	b.won = b.won || won
	if last {
		b.busy = false
	}
	var back nodes
	if !b.won && !b.releasing {
		back = b.holds &^ b.asking &^ b.giving
		b.giving, b.givingEnds = b.giving|back, time.Now().Add(b.life)
	}
	clean = b.asking|b.giving|b.holds|b.unclear == 0
	b.mu.Unlock()
	for n := range q.eachNode(back) {
		b.giveBack(n)
	}
	return clean
}

// mayRemain reports whether a node may have a vote, or may give it later, that only a release takes
// back.
func (b *ballot) mayRemain() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asking|b.unclear != 0
}

// giveBack withdraws the vote that node n gave in a lost round. The node gets no other acquire of
// the token before it has confirmed the withdrawal. A late repetition of the withdrawal finds
// another vote and has no effect. The calls have the class Release, because rivals wait for this
// vote.
func (b *ballot) giveBack(n *node) {
	b.mu.Lock()
	c := store.Claim{Key: b.claim.Key, Owner: b.claim.Owner, TTL: b.claim.TTL}
	vote, useless := b.votes[n.index], b.givingEnds
	b.mu.Unlock()
	n.links.Repeat(calls.Chore{Claim: c, Useless: useless, Try: func(c store.Claim, onAnswer func(store.Grant, error)) {
		n.release(backgroundContext, c, releaseArgs{vote: vote}, func(g store.Grant, err error) {
			if err == nil {
				b.mu.Lock()
				b.giving, b.holds = b.giving.minus(n.index), b.holds.minus(n.index)
				b.mu.Unlock()
			}
			onAnswer(g, err)
		})
	}})
}

// plannedRelease are the sets of nodes for one release.
type plannedRelease struct {
	atOnce     nodes // nodes that get the release at once
	later      nodes // nodes that get it after their answer to the acquire
	tombstones nodes // nodes at which the release also sets a tombstone
	confirmed  nodes // nodes that have confirmed an earlier attempt of the same release, and get no other
}

// releaseKind is what a release does besides. A node that has confirmed one kind may still need
// another one, for its tombstone or its done mark.
type releaseKind struct{ undo, complete bool }

func kindOf(c *store.Claim) releaseKind { return releaseKind{c.TombstoneTTL > 0, c.Complete} }

// markReleasing marks the token as being released, and returns the nodes for the release c. If c is
// an undo, all nodes that may have a trace of the token get it at once, with a tombstone.
func (b *ballot) markReleasing(c store.Claim) (p plannedRelease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.releasing = true; b.releasedAs != kindOf(&c) {
		b.released, b.releasedAs = 0, kindOf(&c)
	}
	p.confirmed = b.released
	if c.TombstoneTTL > 0 {
		p.tombstones = b.asking | b.giving | b.holds | b.unclear
		p.atOnce = p.tombstones &^ p.confirmed
		return p
	}
	p.later, p.tombstones = b.asking&^p.confirmed, b.unclear
	p.atOnce = (b.holds | b.unclear) &^ b.giving &^ p.later &^ p.confirmed
	return p
}

// recordReleased records that node i has confirmed the release c. If the release stays undecided,
// its repetition counts this node: asked again, the node would answer that the token has no lease.
func (b *ballot) recordReleased(i int, c *store.Claim) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.releasedAs == kindOf(c) {
		b.released = b.released.plus(i)
	}
}
