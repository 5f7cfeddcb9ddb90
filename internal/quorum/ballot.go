package quorum

import (
	"maps"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/store"
)

// ballot has the votes of one token. It exists from the first acquire until the release is decided.
// After that, only the calls that are still under way refer to it: a late vote finds "releasing"
// here. At each node, any of these can be true (docs/adr/0210 has the table of what follows):
//
//	asking   an acquire was sent, and has no answer yet
//	holds    the node has given its vote
//	unclear  an acquire may have run, or may still run; stays until the end of the ballot
//	giving   the vote of a lost round is being given back
//
// No vote is given back while a round may count it. A round asks only nodes for which no call is
// under way, a token has one round at a time, and votes are given back only between rounds.
type ballot struct {
	mu        sync.Mutex
	claim     store.Claim // the claim of the latest acquire
	asking    nodes
	holds     nodes
	unclear   nodes
	giving    nodes
	votes     [mostNodes]uint64 // for each node, the fence that it has made for its vote: it distinguishes the vote from later votes for the same token
	expires   time.Time         // the time at which all votes that are being given back have expired
	busy      bool              // an acquire of the token is under way
	counting  bool              // a round of it may count votes
	won       bool              // a quorum has granted the token's acquire, so its votes stay until the release
	releasing bool              // the token is being released
	released  nodes             // nodes that have confirmed the release
	forgetAt  time.Time         // the time after which the ballot may be dropped: then the release goes to all nodes
}

// ballots has the ballots of the tokens in use.
type ballots struct {
	mu    sync.Mutex
	all   map[string]*ballot
	sweep int // when this many ballots exist, look for tokens that were never released
}

// enter returns the ballot of c.Owner for an acquire that begins, and makes the ballot if there is
// none. The result ok is false while another acquire of the token is under way.
func (bs *ballots) enter(c store.Claim) (b *ballot, ok bool) {
	now := time.Now()
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if b = bs.all[c.Owner]; b == nil {
		if len(bs.all) >= max(bs.sweep, 1024) {
			maps.DeleteFunc(bs.all, func(_ string, b *ballot) bool {
				b.mu.Lock()
				defer b.mu.Unlock()
				return now.After(b.forgetAt)
			})
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
	b.claim, b.busy = c, true
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

// begin begins a round, and returns the nodes to ask. The result ok is false when the token is being
// released.
func (b *ballot) begin(q *quorum) (ask nodes, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.giving != 0 && time.Now().After(b.expires) {
		b.giving, b.holds = 0, b.holds&^b.giving
	}
	if b.releasing {
		return 0, false
	}
	ask = q.allNodes() &^ (b.asking | b.giving)
	b.asking, b.counting = b.asking|ask, true
	return ask, true
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
	c := b.claim
	c.TombstoneTTL = calls.UndoFor(b.unclear.has(i), c.TTL)
	b.mu.Unlock()
	if late {
		n.repeatRelease(c)
	}
	b.giveBack(n.quorum)
}

// end ends a round. If the round was lost, it gives the votes of the token back. If the round is the
// last one, it ends the acquire. The result clean is true if no node has a vote, or may get one. The
// result unclear is true if a node may have a vote, or may give it later, that only a release takes
// back.
func (b *ballot) end(q *quorum, won, last bool) (clean, unclear bool) {
	b.mu.Lock()
	b.won, b.busy, b.counting = b.won || won, !last, false
	clean, unclear = b.asking|b.giving|b.holds|b.unclear == 0, b.asking|b.unclear != 0
	b.mu.Unlock()
	b.giveBack(q)
	return clean, unclear
}

// giveBack withdraws the votes that do not count any more. Their nodes get no other acquire of the
// token before they have confirmed the withdrawal. A late repetition of the withdrawal finds another
// vote and has no effect. The calls have the class Release, because rivals wait for these votes.
func (b *ballot) giveBack(q *quorum) {
	b.mu.Lock()
	lost := b.holds &^ b.asking &^ b.giving
	if b.counting || b.won || b.releasing || lost == 0 {
		b.mu.Unlock()
		return
	}
	b.giving |= lost
	b.expires = time.Now().Add(b.claim.TTL + 2*q.skew)
	c, votes, useless := store.Claim{Key: b.claim.Key, Owner: b.claim.Owner, TTL: b.claim.TTL}, b.votes, b.expires
	b.mu.Unlock()
	for n := range q.eachNode(lost) {
		n.links.Repeat(calls.Chore{Claim: c, Useless: useless, Try: func(c store.Claim, onAnswer func(store.Grant, error)) {
			n.release(backgroundContext, c, releaseArgs{vote: votes[n.index]}, link.Release, func(g store.Grant, err error) {
				if err == nil {
					b.mu.Lock()
					b.giving, b.holds = b.giving.minus(n.index), b.holds.minus(n.index)
					b.mu.Unlock()
				}
				onAnswer(g, err)
			})
		}})
	}
}

// markReleasing marks the token as being released. It returns the nodes that get the release c at
// once, the nodes that get it after their answer to the acquire, the nodes at which it also leaves
// a tombstone, and the nodes that have confirmed an earlier attempt. If c is an undo, all nodes that
// may have a trace of the token get it at once.
func (b *ballot) markReleasing(c *store.Claim) (atOnce, later, unclear, confirmed nodes) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.releasing = true
	if atOnce = b.asking | b.giving | b.holds | b.unclear; c.TombstoneTTL <= 0 {
		later = b.asking &^ b.released
		atOnce = (b.holds | b.unclear) &^ b.giving &^ later
	}
	return atOnce &^ b.released, later, b.unclear, b.released
}

// recordReleased records that node i has confirmed the release. If the release stays undecided, its
// repetition counts this node: asked again, the node would answer that the token has no lease.
func (b *ballot) recordReleased(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = b.released.plus(i)
}

// forgetSoon is called when the token was undone. Its ballot stays for a while, so that no acquire
// of the token can begin that its caller has given up already.
func (b *ballot) forgetSoon() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released, b.forgetAt = 0, time.Now().Add(calls.Timeout)
}
