package quorum

import (
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/locker/store"
)

// ballot has the state of one token at each node of a quorum. It exists from the first acquire
// until the release is decided. At each node, the token is in one of these states:
//
//	under way    an acquire was sent, and has no answer yet
//	holds        the node has granted the acquire
//	unclear      the acquire may have run, or may still run
//	nothing      the node was busy, or refused
//
// When a round ends without a quorum, each node in the state "holds" gets a withdrawal of its vote
// at once. The node gets no acquire until it has confirmed the withdrawal. When the token is
// released, the nodes in the states "holds" and "unclear" get the release. At an unclear node, the
// release also sets a tombstone. A node in the state "under way" gets the release after its answer.
//
// No vote is given back while a round may count it. A round asks only nodes for which no call is
// under way, and votes are given back only between rounds.
type ballot struct {
	claim store.Claim   // the claim of the latest acquire
	life  time.Duration // the life of a vote

	mu      sync.Mutex
	asking  nodes             // nodes at which an acquire is under way
	giving  nodes             // nodes whose votes are being given back
	back    time.Time         // by then, all votes in giving have expired
	holds   nodes             // nodes that have granted the token's lease
	unclear nodes             // nodes at which an acquire is unclear
	queued  nodes             // nodes that have the token in their queues
	knows   nodes             // nodes that may have a trace of the token
	votes   [mostNodes]uint64 // for each node, a number that distinguishes its vote from its later votes for the same token
	calm    chan struct{}     // closed when no call of an acquire is under way; nil while no caller waits in await
	rounds  int               // number of rounds under way
	won     bool              // a quorum has granted the acquire
	keeps   bool              // no quorum was seen, but the unclear votes may complete a quorum
	gone    bool              // the token is being released
	ticket  uint64
	hint    uint64
	since   time.Time // when hint was proposed first
	until   time.Time // from then on, no node has a trace of the token
}

// ballots are the ballots of the tokens in use.
type ballots struct {
	mu    sync.Mutex
	all   map[string]*ballot
	sweep int // when this many ballots exist, look for tokens that were never released
}

// open returns a token's ballot, and makes the ballot if there is none. The parameter life is how
// long a node keeps a vote.
func (bs *ballots) open(c store.Claim, life time.Duration) *ballot {
	now := time.Now()
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b := bs.all[c.Owner]
	if b == nil {
		if len(bs.all) >= max(bs.sweep, 1024) {
			for owner, b := range bs.all {
				if b.over(now) {
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
	b.lives(now, c.TTL)
	return b
}

// of returns a token's ballot, or nil when the token has no ballot.
func (bs *ballots) of(owner string) *ballot {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.all[owner]
}

// drop forgets a token.
func (bs *ballots) drop(owner string) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	delete(bs.all, owner)
}

// renewed makes the ballots of renewed leases live longer.
func (bs *ballots) renewed(cs []store.Claim) {
	now := time.Now()
	for _, c := range cs {
		if b := bs.of(c.Owner); b != nil {
			b.mu.Lock()
			b.lives(now, c.TTL)
			b.mu.Unlock()
		}
	}
}

// lives sets how long the ballot stays: as long as a release of the token can have an effect. The
// caller holds b.mu.
func (b *ballot) lives(now time.Time, ttl time.Duration) {
	if until := now.Add(max(ttl, time.Minute) + calls.QueueLife); until.After(b.until) {
		b.until = until
	}
}

// finished is called when the token is not needed any more, because it was undone or its work is
// done. The ballot stays for finishedFor, because this process may have begun calls of the token
// that it has not sent yet.
func (b *ballot) finished() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if soon := time.Now().Add(finishedFor); soon.Before(b.until) {
		b.until = soon
	}
}

// finishedFor is how long the ballot of a finished token stays. It is much longer than the
// goroutine of an abandoned acquire needs to begin. If a goroutine begins even later, the nodes
// that knew the token refuse its acquire by their tombstones. The votes of other nodes end with
// their TTL, because no process renews them.
const finishedFor = 5 * time.Second

func (b *ballot) over(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return now.After(b.until)
}

// hintLife is how long repetitions of an acquire propose the same fence. During this time, a node
// may still receive the first proposal.
const hintLife = time.Second

// isCalm reports whether no call of an acquire is under way.
func (b *ballot) isCalm() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asking|b.giving == 0
}

// await waits for the late answers to the previous round, but no longer than the parameter soon.
// Only a node that has answered can be asked again, and can queue the token.
func (b *ballot) await(soon time.Duration) {
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
	timer := time.NewTimer(soon)
	defer timer.Stop()
	select {
	case <-calm:
	case <-timer.C:
	}
}

// begin begins a round. It returns the nodes to ask, the fence to propose, and the ticket in the
// queue. The result ok is false when the token is being released.
func (b *ballot) begin(q *quorum) (ask nodes, hint, ticket uint64, ok bool) {
	now := uint64(q.clocks.now().UnixMicro()) //nolint:gosec // after 1970
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone {
		return 0, 0, 0, false
	}
	if b.giving != 0 && time.Now().After(b.back) {
		b.giving, b.holds = 0, b.holds&^b.giving
	}
	if b.hint == 0 || b.asking|b.holds|b.unclear == 0 || time.Since(b.since) > hintLife {
		b.hint, b.since = now, time.Now()
	}
	if b.ticket == 0 {
		b.ticket = now
	}
	for i, n := range q.nodes {
		if !b.asking.has(i) && !b.giving.has(i) && !q.behind(n) {
			ask = ask.with(i)
		}
	}
	b.asking |= ask
	b.knows |= ask
	b.rounds++
	b.keeps = false
	return ask, b.hint, b.ticket, true
}

// record records a node's answer to an acquire. It returns what to do with a vote that came too
// late for its round.
func (b *ballot) record(i int, p poll, err error) (fate afterwards) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asking = b.asking.without(i)
	defer b.calmed()
	refused := isRefusal(err)
	switch {
	case err != nil && !refused:
		b.unclear = b.unclear.with(i)
	case refused: // a refusal does not prove that earlier calls had no effect
		if !(b.holds | b.unclear | b.queued).has(i) {
			b.knows = b.knows.without(i)
		}
	case p.State == store.Granted:
		b.holds, b.votes[i] = b.holds.with(i), p.vote
	default:
		b.holds = b.holds.without(i)
		if b.claim.Queue {
			b.queued = b.queued.with(i)
		}
	}
	switch {
	case b.gone && (b.holds | b.unclear | b.queued).has(i):
		return releaseIt
	case b.rounds > 0 || b.won || b.keeps || !b.holds.has(i):
		return leaveIt
	}
	b.giving, b.back = b.giving.with(i), time.Now().Add(b.life)
	return giveItBack
}

// afterwards is what must be done with a late vote.
type afterwards int

const (
	leaveIt    afterwards = iota
	releaseIt             // the token was released meanwhile
	giveItBack            // the round was lost
)

// end ends a round, and returns the nodes whose votes must be given back. There can be two rounds
// at a time, because an abandoned acquire continues beside its repetition. If one of the two rounds
// has won the lease, the votes stay as long as a quorum of nodes may hold the lease. Each node has
// only one call at a time, so the node's state follows the order of its answers.
func (b *ballot) end(won, keeps bool, need int) (giveBack nodes) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rounds--
	b.won = won || b.won && (b.holds|b.asking|b.unclear).count() >= need
	b.keeps = keeps
	if !b.won && !keeps && !b.gone && b.rounds == 0 {
		giveBack = b.holds &^ b.asking &^ b.giving
		b.giving, b.back = b.giving|giveBack, time.Now().Add(b.life)
	}
	return giveBack
}

// given records that a node has taken its vote back.
func (b *ballot) given(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.giving, b.holds = b.giving.without(i), b.holds.without(i)
	b.calmed()
}

// calmed ends the wait in await when no call is under way. The caller holds b.mu.
func (b *ballot) calmed() {
	if b.asking|b.giving == 0 && b.calm != nil {
		close(b.calm)
		b.calm = nil
	}
}

// leave returns three sets of nodes. The nodes in "atOnce" get the release at once. The nodes in
// "later" get it after their answer to the acquire. At the nodes in "tombstones", the release also
// sets a tombstone.
func (b *ballot) leave(undo bool) (atOnce, tombstones, later nodes) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = true
	if undo {
		return b.knows, b.knows, 0
	}
	atOnce = (b.holds | b.unclear) &^ b.giving
	if b.claim.Queue {
		atOnce = b.knows
	}
	return atOnce &^ b.asking, b.unclear, b.asking
}

// settled reports whether no node can have a trace of the token.
func (b *ballot) settled() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asking|b.giving|b.holds|b.unclear == 0 && b.rounds == 0
}

// remains reports whether a node may have the token, or may get it later, and keep it until a
// release removes it. The votes of a lost round do not count, because the round gives them back.
func (b *ballot) remains() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asking|b.unclear|b.queued != 0
}

// farewell returns the claim that releases node i's vote when the vote came after the release of
// its token.
func (b *ballot) farewell(i int) store.Claim {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.claim
	c.TombstoneTTL = calls.UndoFor(b.unclear.has(i), c.TTL)
	return c
}

// lost returns the release of node i's vote after a lost round. The result vote identifies the
// vote, because a late release must not end a later vote. The result over is the time at which the
// vote expires. The token stays in the queue.
func (b *ballot) lost(i int) (c store.Claim, vote uint64, over time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c = store.Claim{Key: b.claim.Key, Owner: b.claim.Owner, TTL: b.claim.TTL, Mode: b.claim.Mode, Inbox: b.claim.Inbox}
	return c, b.votes[i], b.back
}
