package quorum

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// ballotOfThree returns a quorum of three nodes and the ballot of one token.
func ballotOfThree() (*quorum, *ballot) {
	q := &quorum{need: 2, clocks: newClocks(3)}
	for i := range 3 {
		q.nodes = append(q.nodes, &node{index: i})
	}
	return q, q.ballots.open(store.Claim{Key: "k", Owner: "o", TTL: time.Second}, time.Second)
}

// checkBegin begins a round, and fails the test unless it asks the nodes in want.
func (b *ballot) checkBegin(t *testing.T, q *quorum, want nodes) {
	t.Helper()
	if ask, _, _, ok := b.begin(q); !ok || ask != want {
		t.Errorf("a round asks %03b, %v, want %03b", ask, ok, want)
	}
}

// checkRecord gives the ballot the answer (p, err) of node i to an acquire, and fails the test
// unless the vote is treated as want says.
func (b *ballot) checkRecord(t *testing.T, i int, p poll, err error, want voteFate) {
	t.Helper()
	if fate := b.record(i, p, err); fate != want {
		t.Errorf("node %d: %v, %v: the fate of the vote is %d, want %d", i, p.State, err, fate, want)
	}
}

// checkEnd ends a round, and fails the test unless the votes of the nodes in want are given back.
func (b *ballot) checkEnd(t *testing.T, won, uncertain bool, want nodes) {
	t.Helper()
	if back := b.end(won, uncertain, 2); back != want {
		t.Errorf("the end of a round gives %03b back, want %03b", back, want)
	}
}

var (
	yes       = poll{Grant: store.Grant{State: store.Granted}, minted: 1}
	taken     = poll{Grant: store.Grant{State: store.Busy}, holder: "x"}
	errCutOff = errors.New("reset")
)

// An abandoned acquire still waits for a node that hangs, while its repetition runs. When the
// abandoned acquire loses, it must not give back votes that the repetition may be counting.
func TestALostRoundGivesNothingBackThatAnotherCounts(t *testing.T) {
	q, b := ballotOfThree()
	b.checkBegin(t, q, 0b111)
	b.checkRecord(t, 0, yes, nil, leaveVote)
	b.checkRecord(t, 1, taken, nil, leaveVote)
	b.checkBegin(t, q, 0b011) // node 2 has not answered the first acquire
	b.checkRecord(t, 0, yes, nil, leaveVote)
	b.checkEnd(t, false, false, 0)
	b.checkRecord(t, 1, yes, nil, leaveVote)
	b.checkEnd(t, true, false, 0)
	b.checkRecord(t, 2, yes, nil, leaveVote) // this vote completes the quorum
}

// The votes of a won acquire stay only while a quorum of nodes may still hold the lease. If they
// stayed longer, a vote of a lost lease would remain at its node until the release.
func TestWhatWasWonAndRanOutIsGivenBack(t *testing.T) {
	q, b := ballotOfThree()
	b.checkBegin(t, q, 0b111)
	b.checkRecord(t, 0, yes, nil, leaveVote)
	b.checkRecord(t, 1, yes, nil, leaveVote)
	b.checkEnd(t, true, false, 0)
	b.checkRecord(t, 2, taken, nil, leaveVote)
	b.checkBegin(t, q, 0b111) // a late repetition
	b.checkRecord(t, 0, taken, nil, leaveVote)
	b.checkRecord(t, 1, taken, nil, leaveVote)
	b.checkRecord(t, 2, yes, nil, leaveVote)
	b.checkEnd(t, false, false, 0b100)
}

func TestANodeIsNotAskedWhileItsVoteIsGivenBack(t *testing.T) {
	q, b := ballotOfThree()
	b.checkBegin(t, q, 0b111)
	b.checkRecord(t, 0, yes, nil, leaveVote)
	b.checkRecord(t, 1, taken, nil, leaveVote)
	b.checkEnd(t, false, false, 0b001)
	b.checkRecord(t, 2, yes, nil, giveVoteBack) // a late vote
	b.checkBegin(t, q, 0b010)
	b.recordGivenBack(0)
	b.checkBegin(t, q, 0b001)
	if p := b.markReleasing(store.Claim{}); p.atOnce&0b100 != 0 || p.later != 0b011 {
		t.Errorf("a release goes to %03b at once, and to %03b later", p.atOnce, p.later)
	}
}

// When the answer of one node is unclear, the votes of the other nodes may be a quorum. So neither
// these votes nor a late vote are given back.
func TestVotesThatMayBeAGrantAreKept(t *testing.T) {
	q, b := ballotOfThree()
	b.checkBegin(t, q, 0b111)
	b.checkRecord(t, 0, yes, nil, leaveVote)
	b.checkRecord(t, 1, poll{}, errCutOff, leaveVote)
	b.checkEnd(t, false, true, 0)
	b.checkRecord(t, 2, yes, nil, leaveVote)
}

// A release must not overtake an acquire, so a node gets the release when it has answered the
// acquire. If the answer was unclear, the acquire may still run later, and must then find a
// tombstone.
func TestAReleaseFollowsTheAcquireAtEachNode(t *testing.T) {
	q, b := ballotOfThree()
	b.checkBegin(t, q, 0b111)
	b.checkRecord(t, 0, yes, nil, leaveVote)
	b.checkRecord(t, 1, poll{}, errCutOff, leaveVote)
	b.checkEnd(t, false, true, 0)
	b.checkBegin(t, q, 0b011)
	b.checkRecord(t, 0, yes, nil, leaveVote)
	no := &store.Refusal{Temporary: true, Err: errCutOff}
	b.checkRecord(t, 1, poll{}, no, leaveVote) // the refusal does not prove that the first acquire had no effect
	b.checkEnd(t, false, true, 0)
	b.checkBegin(t, q, 0b011)
	b.checkRecord(t, 1, poll{}, no, leaveVote)
	if p := b.markReleasing(store.Claim{}); p.atOnce != 0b010 || p.tombstones != 0b010 || p.later != 0b101 { // node 0 has voted, and a second call to it is under way
		t.Errorf("at once %03b, with tombstones %03b, later %03b", p.atOnce, p.tombstones, p.later)
	}
	b.checkRecord(t, 0, yes, nil, releaseVote)
	b.checkRecord(t, 2, poll{}, errCutOff, releaseVote)
	if c := b.lateRelease(2); c.TombstoneTTL == 0 {
		t.Error("its release leaves no tombstone, and the acquire may still run")
	}
	if p := b.markReleasing(undo); p.atOnce != 0b111 || p.tombstones != 0b111 {
		t.Errorf("an undo goes to %03b, with tombstones %03b", p.atOnce, p.tombstones)
	}
	if _, _, _, ok := b.begin(q); ok {
		t.Error("a round begins after the release")
	}
}

// undo is a release that sets tombstones.
var undo = store.Claim{TombstoneTTL: time.Minute}

// When callers often give up, the process remembers only the tokens that were undone in the last
// few seconds, and not all tokens of the last minute.
func TestUndoneTokensAreForgottenAfterSomeSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bs ballots
		const every = time.Millisecond
		for i := range 60_000 {
			b := bs.open(store.Claim{Key: "k", Owner: fmt.Sprint(i), TTL: 30 * time.Second}, time.Second)
			b.markReleasing(undo)
			b.finish()
			time.Sleep(every) //nolint:forbidigo // in a bubble
		}
		if n := len(bs.all); n > 2*int(finishedFor/every)+1024 {
			t.Errorf("%d tokens are known, one was undone every %v", n, every)
		}
	})
}
