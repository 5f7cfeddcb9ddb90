package quorum

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker/store"
)

// tally counts the answers to one round of an acquire.
type tally struct {
	quorum *quorum
	polls  []poll
	errs   []error
	heard  nodes  // which have answered, one way or the other
	off    nodes  // whose clocks cannot be trusted, as it was known when the last of them answered
	under  string // the servers and generations under which most votes were given; only those votes count
	took   time.Duration
	rounds int
	after  time.Duration // until enough nodes are expected to vote
}

func newTally(q *quorum) *tally {
	return &tally{quorum: q, polls: make([]poll, len(q.nodes)), errs: make([]error, len(q.nodes))}
}

func (t *tally) hear(i int, p poll, err error) {
	t.heard = t.heard.with(i)
	t.polls[i], t.errs[i] = p, err
	t.off = 0
	for i := range t.polls {
		if t.heard.has(i) && t.quorum.clocks.off(i) > t.quorum.skew {
			t.off = t.off.with(i)
		}
	}
	t.under = ""
	if most, n := 0, len(t.polls); n > 0 {
		for i := range t.polls {
			u := under(t.polls[i].text)
			if m := t.count(func(j int) bool { return t.granted(j) && under(t.polls[j].text) == u }); m > most {
				t.under, most = u, m
			}
		}
	}
}

// granted says whether node i has voted, whether or not its vote counts.
func (t *tally) granted(i int) bool { return t.answered(i) && t.polls[i].State == store.Granted }

// answered says whether node i has answered, and its clock can be trusted. What is known of the
// clocks changes all the time, with the answers to other steps too; all counts of a round must come
// to the same, so they ask t.off.
func (t *tally) answered(i int) bool {
	return t.heard.has(i) && t.errs[i] == nil && !t.off.has(i)
}

// votes says whether node i's vote counts: it was given under the same generations as the others,
// by a server that no other node has led to.
func (t *tally) votes(i int) bool {
	if !t.granted(i) || under(t.polls[i].text) != t.under {
		return false
	}
	for j := range i {
		if text := t.polls[j].text; text != "" && text == t.polls[i].text && t.granted(j) {
			return false
		}
	}
	return true
}

func (t *tally) count(counts func(i int) bool) (n int) {
	for i := range t.polls {
		if counts(i) {
			n++
		}
	}
	return n
}

// enough says whether enough nodes have voted, whatever the fence.
func (t *tally) enough() bool { return t.count(t.votes) >= t.quorum.need }

// won says whether enough nodes have voted for the same fence.
func (t *tally) won() bool {
	_, n := t.favourite()
	return n >= t.quorum.need
}

// favourite is the fence that most votes agree on.
func (t *tally) favourite() (fence uint64, n int) {
	for i := range t.polls {
		if !t.votes(i) {
			continue
		}
		f := t.polls[i].Fence
		if m := t.count(func(j int) bool { return t.votes(j) && t.polls[j].Fence == f }); m > n {
			fence, n = f, m
		}
	}
	return fence, n
}

// proposal is the fence that all votes can be raised to, and the block that each of them has
// reserved.
func (t *tally) proposal() (fence uint64, block int) {
	for i := range t.polls {
		if t.votes(i) {
			fence = max(fence, t.polls[i].Fence)
			block = t.shorter(block, i)
		}
	}
	return fence, block
}

func (t *tally) shorter(block, i int) int {
	if b := t.polls[i].FenceCount; block == 0 || b < block {
		return b
	}
	return block
}

// rival is the holder that most nodes name.
func (t *tally) rival() (holder string, n int) {
	for i := range t.polls {
		if !t.answered(i) || t.polls[i].State != store.Busy {
			continue
		}
		h := t.polls[i].holder
		if m := t.count(func(j int) bool { return t.answered(j) && t.polls[j].State == store.Busy && t.polls[j].holder == h }); m > n {
			holder, n = h, m
		}
	}
	return holder, n
}

// final is what a node says when the owner is to get nothing any more. That the work is done, need
// nodes must say: the mark of a Complete that was refused may lie on fewer.
func (t *tally) final() (g store.Grant, ok bool) {
	for _, s := range []store.State{store.Revoked, store.Undone} {
		for i := range t.polls {
			if t.answered(i) && t.polls[i].State == s {
				return t.polls[i].Grant, true
			}
		}
	}
	return store.Grant{State: store.Done}, t.count(t.done) >= t.quorum.need
}

// done says whether node i has the done mark.
func (t *tally) done(i int) bool { return t.answered(i) && t.polls[i].State == store.Done }

// undecided says whether the work may be done, or not, as far as the nodes that have answered know.
func (t *tally) undecided() bool {
	return t.count(t.done) > 0 && t.count(func(i int) bool { return t.done(i) || !t.answered(i) }) >= t.quorum.need
}

// decided says whether no further answer can change anything.
func (t *tally) decided() bool {
	if t.enough() {
		return true
	}
	if _, n := t.rival(); n >= t.quorum.need && (t.alike() || t.heard.count() == len(t.polls)) {
		return true
	}
	open := t.count(func(i int) bool { return !t.heard.has(i) })
	_, final := t.final()
	return final && t.count(t.votes)+open < t.quorum.need
}

// alike says whether the holder's lease ends at about the same time at all nodes that have
// answered. Otherwise a renewal or a release is on its way, and the other nodes' answers say when
// the key is free.
func (t *tally) alike() bool {
	least, most := time.Duration(math.MaxInt64), time.Duration(math.MinInt64)
	for i := range t.polls {
		if t.busyAt(i) {
			left := t.polls[i].Holder.Left
			least, most = min(least, left), max(most, left)
		}
	}
	return most-least < 100*time.Millisecond
}

// split says whether the votes went to contenders none of whom can have won.
func (t *tally) split() bool {
	_, n := t.rival()
	return !t.won() && n+t.count(func(i int) bool { return !t.answered(i) }) < t.quorum.need
}

// tied says whether they may be split: a node has voted for us, and what another contender has is
// no quorum, unless a node that does not answer has voted for it. Who took it for a holder would
// wait for a lease that is given back at once.
func (t *tally) tied() bool {
	_, n := t.rival()
	return !t.won() && n < t.quorum.need && t.count(t.votes) > 0
}

// uncertain says whether the votes that are there, with those that may be, could be a grant.
func (t *tally) uncertain() bool {
	if _, err := t.result(); err == nil {
		return false
	}
	return t.count(func(i int) bool { return t.votes(i) || t.unclear(i) }) >= t.quorum.need
}

// unclear says whether node i may have voted without our knowing.
func (t *tally) unclear(i int) bool {
	return !t.heard.has(i) || t.errs[i] != nil && !isRefusal(t.errs[i])
}

// result is what the answers come to.
func (t *tally) result() (store.Grant, error) {
	need := t.quorum.need
	if fence, n := t.favourite(); n >= need {
		g := store.Grant{State: store.Granted, Fence: fence}
		for i, p := range t.polls {
			if t.votes(i) && p.Fence == fence {
				g.FenceCount = t.shorter(g.FenceCount, i)
			}
			g.Writer = g.Writer || p.Writer
		}
		return g, nil
	}
	if g, ok := t.final(); ok {
		return g, nil
	}
	if t.count(t.answered) < need || t.enough() || t.undecided() || t.count(t.busyAt) == 0 {
		return store.Grant{}, t.failure()
	}
	return t.busy(), nil
}

// busyAt says whether node i has another holder.
func (t *tally) busyAt(i int) bool { return t.answered(i) && t.polls[i].State == store.Busy }

// busy says who holds the key, until when, and how far back we wait.
func (t *tally) busy() store.Grant {
	g := store.Grant{State: store.Busy}
	if t.split() {
		g.Holder.Left = 2*time.Millisecond + rand.N(18*time.Millisecond) // so that it is not split again
		return g
	}
	holder, _ := t.rival()
	var lefts []time.Duration
	heard := 0
	for i, p := range t.polls {
		if !t.answered(i) || p.State != store.Busy {
			continue
		}
		if p.NotListening {
			heard--
		} else {
			heard++
		}
		lefts = append(lefts, p.Holder.Left)
		if p.Place > 0 && (g.Place == 0 || p.Place < g.Place) {
			g.Place = p.Place
		}
		if p.holder == holder && g.Holder == (store.Holder{}) {
			g.Holder = p.Holder
		}
	}
	g.NotListening = heard < 0
	// The key is free when so many of these leases have run out that the rest is no quorum.
	g.Holder.Left = runsOut(lefts, t.quorum.need-t.count(t.votes))
	if t.tied() {
		g.Place = 0 // as who is in no queue asks again: who gives a vote back calls nobody
	}
	return g
}

// runsOut is when k of some leases have run out, at least one.
func runsOut(lefts []time.Duration, k int) time.Duration {
	slices.SortFunc(lefts, func(a, b time.Duration) int {
		if endless := cmp.Compare(min(b, 0), min(a, 0)); endless != 0 {
			return endless // without end: the last
		}
		return cmp.Compare(a, b)
	})
	return lefts[min(max(k, 1), len(lefts))-1]
}

// failure is ErrQuorum with what the nodes said. It is a Refusal when it proves that no quorum can
// have granted the key.
func (t *tally) failure() error {
	var all []error
	unclear, forGood := 0, 0
	for i, n := range t.quorum.nodes {
		err := t.errs[i]
		switch {
		case !t.heard.has(i):
			err = errSilent
		case err == nil && !t.answered(i):
			err = errOff(t.quorum.clocks.off(i))
		case err == nil && t.granted(i) && !t.votes(i):
			err = errOtherVotes
		case err == nil:
			continue
		}
		all = append(all, n.error(err))
		if no, ok := errtype.As[*store.Refusal](err); !ok {
			unclear++
		} else if !no.Temporary {
			forGood++
		}
	}
	err := error(&quorumError{
		what:  fmt.Sprintf("%d of %d nodes answered, %d must agree", t.count(t.answered), len(t.polls), t.quorum.need),
		nodes: all,
		after: t.after,
	})
	if unclear > 0 {
		return err
	}
	return &store.Refusal{Temporary: forGood <= len(t.polls)-t.quorum.need, Err: err}
}
