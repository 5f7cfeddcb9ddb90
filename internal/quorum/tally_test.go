package quorum

import (
	"errors"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// tallyOf makes a tally of the answers of nodes, each written as a word: g5 has granted fence 5, x
// and y are other holders, x+ is x with a longer lease, u undone, r revoked, d done, ! an unclear
// error, - a refusal, = a permanent refusal. A node with "" has not answered.
func tallyOf(answers ...string) *tally {
	q := &quorum{need: len(answers)/2 + 1, skew: time.Second, clocks: newClocks(len(answers))}
	for i := range answers {
		q.nodes = append(q.nodes, &node{index: i})
	}
	t := newTally(q)
	for i, a := range answers {
		switch {
		case a == "":
		case a[0] == 'g':
			t.record(i, poll{Grant: store.Grant{State: store.Granted, Fence: uint64(a[1] - '0'), FenceCount: 10 - i}}, nil)
		case a == "x" || a == "y" || a == "x+":
			left := time.Duration(i+1) * 10 * time.Millisecond
			if a == "x+" {
				left += time.Minute
			}
			t.record(i, poll{Grant: store.Grant{State: store.Busy, Holder: store.Holder{Fence: 7, Left: left}}, holder: a[:1]}, nil)
		case a == "!":
			t.record(i, poll{}, errors.New("reset"))
		case a == "-" || a == "=":
			t.record(i, poll{}, &store.Refusal{Temporary: a == "-", Err: errors.New("refused")})
		default:
			t.record(i, poll{Grant: store.Grant{State: map[string]store.State{"u": store.Undone, "r": store.Revoked, "d": store.Done}[a]}}, nil)
		}
	}
	return t
}

func TestWhatAnswersComeTo(t *testing.T) {
	for _, c := range []struct {
		answers []string
		result  store.State // 0: ErrQuorum
	}{
		{answers: []string{"g5", "g5", "g5"}, result: store.Granted},
		{answers: []string{"g5", "g6", "g5"}, result: store.Granted},
		{answers: []string{"d", "g5", "g5"}, result: store.Granted}, // the done mark of one node does not count, so the work is not done
		{answers: []string{"g1", "g1", "g1", "x", "x"}, result: store.Granted},
		{answers: []string{"x", "x", "g5"}, result: store.Busy},
		{answers: []string{"x", "g5", "-"}, result: store.Busy}, // the third node may have voted for x
		{answers: []string{"x", "x", "!"}, result: store.Busy},
		{answers: []string{"x", "y", "g5"}, result: store.Busy},
		{answers: []string{"x", "x", "y", "y", "g5"}, result: store.Busy},
		{answers: []string{"x", "x", "y", "-", "g5"}, result: store.Busy},
		{answers: []string{"x", "-", "-"}},
		{answers: []string{"x", "!", "!"}},
		{answers: []string{"g5", "!", "-"}},
		{answers: []string{"g5", "-", "-"}},
		{answers: []string{"u", "u", "g5"}, result: store.Undone},
		{answers: []string{"r", "x", "x"}, result: store.Revoked},
		{answers: []string{"u", "r", "g5"}, result: store.Revoked},
		{answers: []string{"d", "g5", "x"}, result: store.Busy}, // the done mark may be from a Complete that was refused
		{answers: []string{"d", "d", "x"}, result: store.Done},
		{answers: []string{"d", "x", "-"}}, // the third node may have the mark as well
		{answers: []string{"d", "x", "!"}},
		{answers: []string{"d", "d", "g5", "g5", "-"}},
		{answers: []string{"d", "g5", "g5", "x", "x"}, result: store.Busy},
	} {
		g, err := tallyOf(c.answers...).result()
		if g.State != c.result || errors.Is(err, store.ErrQuorum) != (c.result == 0) {
			t.Errorf("%q: %v, %v, want %v", c.answers, g.State, err, c.result)
		}
	}
}

// The votes may be split when no rival has a quorum of known votes.
func TestWhenTheVotesMayBeSplit(t *testing.T) {
	for _, c := range []struct {
		split   bool
		answers []string
	}{
		{true, []string{"x", "y", "g5"}},
		{true, []string{"x", "x", "y", "y", "g5"}},
		{true, []string{"d", "g5", "x"}},
		{true, []string{"x", "g5", "-"}},
		{false, []string{"x", "x", "g5"}},
		{false, []string{"x", "x", "!"}},
	} {
		if got := tallyOf(c.answers...).isSplit(); got != c.split {
			t.Errorf("%q: split is %v", c.answers, got)
		}
	}
}

func TestWhenAnswersDecide(t *testing.T) {
	for _, c := range []struct {
		decided bool
		answers []string
	}{
		{true, []string{"g5", "g5", ""}},
		{true, []string{"g5", "g6", ""}}, // enough nodes have voted, and they must then agree on the fence
		{true, []string{"x", "x", ""}},
		{true, []string{"x", "x+", "x"}},
		{true, []string{"x", "u", ""}},
		{false, []string{"g5", "", ""}},
		{false, []string{"g5", "x", ""}},
		{false, []string{"x", "y", ""}}, // the third answer decides which holder has more votes
		{false, []string{"g5", "u", ""}},
		{false, []string{"-", "-", ""}}, // the third answer shows whether the result is a refusal or is unclear
	} {
		if got := tallyOf(c.answers...).decided(); got != c.decided {
			t.Errorf("%q: decided is %v", c.answers, got)
		}
	}
}

// A server that has two clients has one vote, whichever of them answers first.
func TestAServerHasOneVote(t *testing.T) {
	for server, enough := range map[string]bool{"a": false, "b": true} {
		round := tallyOf("", "", "")
		vote := poll{Grant: store.Grant{State: store.Granted, Fence: 5, FenceCount: 1}}
		vote.server = "a"
		round.record(2, vote, nil)
		vote.server = server
		round.record(0, vote, nil)
		if round.enough() != enough || round.won() != enough {
			t.Errorf("enough %v, won %v", round.enough(), round.won())
		}
	}
}

// A grant has the shortest block of all counted votes. The reply "busy" has the time after which
// the other holders are no quorum any more. An error is a refusal only if no node can have granted
// the key.
func TestWhatAnAnswerOfAQuorumSays(t *testing.T) {
	if g, _ := tallyOf("g5", "g6", "g5").result(); g.Fence != 5 || g.FenceCount != 8 {
		t.Errorf("fence %d block %d", g.Fence, g.FenceCount)
	}
	if fence, block := func() (uint64, int) { r := tallyOf("g5", "g6", ""); return r.proposal(r.in(store.Granted)) }(); fence != 6 || block != 9 {
		t.Errorf("proposal %d, block %d", fence, block)
	}
	if g, _ := tallyOf("x", "x", "x").result(); g.Holder.Left != 20*time.Millisecond || g.Place != 0 || g.Holder.Fence != 7 {
		t.Errorf("busy %+v: when two of three have run out the key is free", g)
	}
	if g, _ := tallyOf("g5", "x", "x").result(); g.Holder.Left != 20*time.Millisecond {
		t.Errorf("left %v: one vote was had, so one more must run out", g.Holder.Left)
	}
	if d := runsOut([]time.Duration{-1, 3, 2}, 3); d != -1 {
		t.Errorf("a lease without end ends after %v", d)
	}
	var no *store.Refusal
	if _, err := tallyOf("g5", "-", "-").result(); !errors.As(err, &no) || !no.Temporary || !errors.Is(err, store.ErrQuorum) {
		t.Errorf("%v, want a refusal for now", err)
	}
	if _, err := tallyOf("g5", "=", "=").result(); !errors.As(err, &no) || no.Temporary {
		t.Errorf("%v, want a refusal for good", err)
	}
	if _, err := tallyOf("g5", "!", "-").result(); !errors.Is(err, store.ErrQuorum) || errors.As(err, &no) {
		t.Errorf("%v, want an error that is no refusal, because one node's answer is unclear", err)
	}
}

// All counts of one round agree, although answers to other steps change the measured offsets of the
// clocks meanwhile.
func TestAllCountsOfARoundComeToTheSame(t *testing.T) {
	round := tallyOf("g5", "g5", "")
	clocks, now := round.quorum.clocks, time.Now()
	clocks.note(0, now, now)
	clocks.note(2, now, now)
	clocks.note(1, now.Add(time.Minute), now)
	if g, err := round.result(); !round.enough() || !round.won() || err != nil || g.State != store.Granted {
		t.Errorf("a vote was dropped in the middle of a round: enough %v, won %v, %v, %v", round.enough(), round.won(), g.State, err)
	}
	round.record(2, poll{Grant: store.Grant{State: store.Busy}, holder: "x"}, nil)
	if g, err := round.result(); round.won() || err == nil && g.State == store.Granted {
		t.Errorf("the vote of a node counts whose clock is a minute off: won %v, %v, %v", round.won(), g.State, err)
	}
}

// The letters stand for answers to a release or a renewal: r done, n not the owner's, v revoked, d
// done mark, ! no answer.
func TestWhatAnswersToAReleaseComeTo(t *testing.T) {
	for _, c := range []struct {
		answers string
		decided bool
		result  store.State // 0: ErrQuorum
	}{
		{"", false, 0},
		{"r", false, 0},
		{"rr", true, store.Released},
		{"rn", false, 0},
		{"rnr", true, store.Released},
		{"n", false, 0}, // the other two nodes may succeed
		{"nn", true, store.NotOurs},
		{"rnn", true, store.NotOurs},
		{"r!", false, 0},
		{"rn!", false, 0},
		{"n!", false, 0},
		{"r!!", false, 0},
		{"vn", true, store.Revoked},
		{"v", false, 0},
		{"dn", false, 0}, // the third node may have the mark as well
		{"dnn", true, store.NotOurs},
		{"dd", true, store.Done},
		{"rdn", true, store.Done},
		{"dn!", false, 0}, // the third node may have the mark, for all that is known
		{"nn!", true, store.NotOurs},
	} {
		q := tallyOf("", "", "").quorum
		n := releaseTally{quorum: q}
		for i, a := range c.answers {
			switch a {
			case '!':
				n.record(i, store.Grant{}, errors.New("reset"))
			default:
				n.record(i, store.Grant{State: map[rune]store.State{'r': store.Released, 'n': store.NotOurs, 'v': store.Revoked, 'd': store.Done}[a]}, nil)
			}
		}
		if got := n.decided(); got != c.decided {
			t.Errorf("%q: decided is %v", c.answers, got)
		}
		if g, err := n.result(0); g.State != c.result || errors.Is(err, store.ErrQuorum) != (c.result == 0) {
			t.Errorf("%q: %v, %v, want %v", c.answers, g.State, err, c.result)
		}
	}
}
