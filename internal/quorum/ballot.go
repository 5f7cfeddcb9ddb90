package quorum

import (
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/locker/store"
)

// ballot is what a quorum knows of one token: what was asked of which node, and what may come of
// it. It exists from the first acquire until the release is decided. For each node:
//
//	under way    an acquire was sent, and has no answer yet
//	holds        the node has granted it
//	unclear      the acquire may have run, or may still run
//	nothing      the node was busy, or refused
//
// When a round ends without a quorum, the nodes that hold give their votes back at once. They are
// not asked meanwhile. When the token is released, the nodes that hold or are unclear get the
// release, unclear ones with a tombstone; a node that is under way gets the release after its
// answer.
//
// No vote is given back while a round may count it: in a round only nodes are asked for which
// nothing is under way, and only between rounds is anything given back.
type ballot struct {
	claim store.Claim   // of the last acquire
	life  time.Duration // of a vote

	mu     sync.Mutex
	asking nodes             // an acquire is under way
	giving nodes             // a vote is being given back
	back   time.Time         // all of these votes have run out
	holds  nodes             // the node has granted the token's lease
	loose  nodes             // an acquire is unclear
	queued nodes             // the node has the token in its queue
	knows  nodes             // the node may know the token
	votes  [mostNodes]uint64 // what tells the vote that a node has given from a later one to the same token
	calm   chan struct{}     // closed when no call of an acquire is left; nil while nobody waits for that
	rounds int               // that are under way
	won    bool              // a quorum has granted it
	keeps  bool              // no quorum was seen, but there may be one
	gone   bool              // it is being released
	ticket uint64
	hint   uint64
	since  time.Time // of the hint
	until  time.Time // nothing that concerns the token matters any more
}

// ballots are those of the tokens that are in use.
type ballots struct {
	mu    sync.Mutex
	all   map[string]*ballot
	sweep int // at this size, look for those whose token was never released
}

// open finds a token's ballot, or makes one. Nodes keep a vote for its life.
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

// of finds a token's ballot; nil when there is none.
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

// renewed makes ballots live on.
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

// lives makes the ballot be kept as long as a release can be of use; b.mu is held.
func (b *ballot) lives(now time.Time, ttl time.Duration) {
	if until := now.Add(max(ttl, time.Minute) + calls.QueueLife); until.After(b.until) {
		b.until = until
	}
}

func (b *ballot) over(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return now.After(b.until)
}

// hintLife is how long repetitions of an acquire propose the same fence: as long as some node may
// still take it from the first.
const hintLife = time.Second

// await waits until the node's answers to the round before have come, if they come soon. Whoever
// asks again so quickly has not lost much, and a node that has answered can be asked, and waited
// at.
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

// begin begins a round: it says whom to ask, what to propose, and under which number to queue.
// False: the token is being released.
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
	if b.hint == 0 || b.asking|b.holds|b.loose == 0 || time.Since(b.since) > hintLife {
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

// heard records a node's answer to an acquire, and says what is to become of a vote that nobody
// counts any more.
func (b *ballot) heard(i int, p poll, err error) (fate afterwards) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asking = b.asking.without(i)
	defer b.calmed()
	refused := isRefusal(err)
	switch {
	case err != nil && !refused:
		b.loose = b.loose.with(i)
	case refused: // says nothing about what was before
		if !(b.holds | b.loose | b.queued).has(i) {
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
	case b.gone && (b.holds | b.loose | b.queued).has(i):
		return releaseIt
	case b.rounds > 0 || b.won || b.keeps || !b.holds.has(i):
		return leaveIt
	}
	b.giving, b.back = b.giving.with(i), time.Now().Add(b.life)
	return giveItBack
}

// afterwards is what becomes of a vote.
type afterwards int

const (
	leaveIt    afterwards = iota
	releaseIt             // the token was released meanwhile
	giveItBack            // the round was lost
)

// end ends a round, and says which votes are to be given back. Mostly there is one round at a time;
// but an acquire that was abandoned goes on, beside its repetition. What either has won stays, as
// long as a quorum of nodes may hold it: what is known of a node is in the order of its answers,
// because it is asked one thing at a time.
func (b *ballot) end(won, keeps bool, need int) (giveBack nodes) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rounds--
	b.won = won || b.won && (b.holds|b.asking|b.loose).count() >= need
	b.keeps = keeps
	if !b.won && !keeps && !b.gone && b.rounds == 0 {
		giveBack = b.holds &^ b.asking &^ b.giving
		b.giving, b.back = b.giving|giveBack, time.Now().Add(b.life)
	}
	return giveBack
}

// given says that a node has taken its vote back.
func (b *ballot) given(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.giving, b.holds = b.giving.without(i), b.holds.without(i)
	b.calmed()
}

// calmed ends the wait for calls of which none is left; b.mu is held.
func (b *ballot) calmed() {
	if b.asking|b.giving == 0 && b.calm != nil {
		close(b.calm)
		b.calm = nil
	}
}

// leave says what a release must do: whom to tell, who needs a tombstone, and who is told when its
// answer comes.
func (b *ballot) leave(undo bool) (tell, tombstones, later nodes) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = true
	if undo {
		return b.knows, b.knows, 0
	}
	tell = (b.holds | b.loose) &^ b.giving
	if b.claim.Queue {
		tell = b.knows
	}
	return tell &^ b.asking, b.loose, b.asking
}

// settled says whether nothing is left of the token anywhere.
func (b *ballot) settled() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asking|b.giving|b.holds|b.loose == 0 && b.rounds == 0
}

// remains reports whether a node may have the token, now or later, unless it is released. Votes of
// a lost round are not counted: the round gives them back.
func (b *ballot) remains() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asking|b.loose|b.queued != 0
}

// farewell is the release of a vote that came when the token had been released.
func (b *ballot) farewell(i int) store.Claim {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.claim
	c.TombstoneTTL = calls.UndoFor(b.loose.has(i), c.TTL)
	return c
}

// lost is the release of node i's vote after a round that was lost, which vote it is, because a
// late release must not take a later vote, and when the vote has run out. The token stays in the
// queue.
func (b *ballot) lost(i int) (c store.Claim, vote uint64, over time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c = store.Claim{Key: b.claim.Key, Owner: b.claim.Owner, TTL: b.claim.TTL, Mode: b.claim.Mode, Inbox: b.claim.Inbox}
	return c, b.votes[i], b.back
}
