package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// tally counts the answers to one round of an acquire.
type tally struct {
	quorum     *quorum
	polls      []poll
	errs       []error
	replied    nodes // nodes that have answered, also with an error
	clockOff   nodes // nodes whose clocks were wrong when the last answer came
	era        era   // the era that most votes have; only the votes of this era count
	took       time.Duration
	trips      int           // how many round trips the round needed
	retryAfter time.Duration // time until enough nodes are expected to vote
}

func newTally(q *quorum) *tally {
	return &tally{quorum: q, polls: make([]poll, len(q.nodes)), errs: make([]error, len(q.nodes))}
}

// record records the answer (p, err) of node i.
func (t *tally) record(i int, p poll, err error) {
	t.replied = t.replied.plus(i)
	t.polls[i], t.errs[i] = p, err
	t.clockOff = t.replied & t.quorum.clocks.outliers(t.quorum.skew, 0)
	t.era = era{}
	most := 0
	for i := range t.polls {
		if !t.granted(i) || most > 0 && t.polls[i].era == t.era {
			continue
		}
		e := t.polls[i].era
		if m := t.count(func(j int) bool { return t.granted(j) && t.polls[j].era == e }); m > most {
			t.era, most = e, m
		}
	}
}

// granted reports whether node i has voted, even if its vote does not count.
func (t *tally) granted(i int) bool { return t.usable(i) && t.polls[i].State == store.Granted }

// usable reports whether node i has answered and its clock is right. It uses t.clockOff and not the
// present offsets, because answers to other steps change these offsets, and all counts of a round
// must agree.
func (t *tally) usable(i int) bool {
	return t.replied.has(i) && t.errs[i] == nil && !t.clockOff.has(i)
}

// voteCounts reports whether node i's vote counts. A vote counts if it was given under the same
// generations as the other votes, by a server that is not counted already.
func (t *tally) voteCounts(i int) bool {
	if !t.granted(i) || t.polls[i].era != t.era {
		return false
	}
	for j := range i {
		if text := t.polls[j].text; text != "" && text == t.polls[i].text && t.granted(j) {
			return false
		}
	}
	return true
}

// count returns the number of nodes for which cond returns true.
func (t *tally) count(cond func(i int) bool) (n int) {
	for i := range t.polls {
		if cond(i) {
			n++
		}
	}
	return n
}

// enough reports whether enough nodes have voted, for any fence.
func (t *tally) enough() bool { return t.count(t.voteCounts) >= t.quorum.need }

// won reports whether enough nodes have voted for the same fence.
func (t *tally) won() bool {
	_, n := t.favourite()
	return n >= t.quorum.need
}

// favourite returns the fence that most votes have, and the number of these votes.
func (t *tally) favourite() (fence uint64, n int) {
	for i := range t.polls {
		if n > 0 && t.polls[i].Fence == fence || !t.voteCounts(i) {
			continue
		}
		f := t.polls[i].Fence
		if m := t.count(func(j int) bool { return t.voteCounts(j) && t.polls[j].Fence == f }); m > n {
			fence, n = f, m
		}
	}
	return fence, n
}

// proposal returns the fence to which all votes can be raised, and the number of fences that every
// vote has reserved.
func (t *tally) proposal() (fence uint64, block int) {
	for i := range t.polls {
		if t.voteCounts(i) {
			fence = max(fence, t.polls[i].Fence)
			block = t.shorterBlock(block, i)
		}
	}
	return fence, block
}

// shorterBlock returns the smaller of block and the block of node i's vote. The value 0 of block
// means that no vote was compared yet.
func (t *tally) shorterBlock(block, i int) int {
	if b := t.polls[i].FenceCount; block == 0 || b < block {
		return b
	}
	return block
}

// rival returns the other holder that the largest number of nodes name, and this number.
func (t *tally) rival() (holder string, n int) {
	for i := range t.polls {
		if !t.usable(i) || t.polls[i].State != store.Busy {
			continue
		}
		h := t.polls[i].holder
		if m := t.count(func(j int) bool { return t.usable(j) && t.polls[j].State == store.Busy && t.polls[j].holder == h }); m > n {
			holder, n = h, m
		}
	}
	return holder, n
}

// finalAnswer returns an answer after which the owner gets no grant: revoked, undone or done. The
// result ok is false if there is no such answer. For "done", a quorum of nodes must have the mark,
// because a Complete that was refused may have left its mark at fewer nodes.
func (t *tally) finalAnswer() (g store.Grant, ok bool) {
	for _, s := range []store.State{store.Revoked, store.Undone} {
		for i := range t.polls {
			if t.usable(i) && t.polls[i].State == s {
				return t.polls[i].Grant, true
			}
		}
	}
	return store.Grant{State: store.Done}, t.count(t.hasDoneMark) >= t.quorum.need
}

// hasDoneMark reports whether node i has the done mark.
func (t *tally) hasDoneMark(i int) bool { return t.usable(i) && t.polls[i].State == store.Done }

// mayBeDone reports whether the work may be done: some nodes have the done mark, and together with
// the nodes without an answer they could be a quorum.
func (t *tally) mayBeDone() bool {
	return t.count(t.hasDoneMark) > 0 && t.count(func(i int) bool { return t.hasDoneMark(i) || !t.usable(i) }) >= t.quorum.need
}

// decided reports whether no further answer can change the result.
func (t *tally) decided() bool {
	if t.enough() {
		return true
	}
	if _, n := t.rival(); n >= t.quorum.need && (t.endsAgree() || t.replied.count() == len(t.polls)) {
		return true
	}
	open := t.count(func(i int) bool { return !t.replied.has(i) })
	_, final := t.finalAnswer()
	return final && t.count(t.voteCounts)+open < t.quorum.need
}

// endsAgree reports whether the holder's lease ends at about the same time at all nodes that have
// answered. If the times differ, a renewal or a release is under way. In this state, the answers of
// the other nodes will show when the key is free.
func (t *tally) endsAgree() bool {
	least, most := time.Duration(math.MaxInt64), time.Duration(math.MinInt64)
	for i := range t.polls {
		if t.isBusy(i) {
			left := t.polls[i].Holder.Left
			least, most = min(least, left), max(most, left)
		}
	}
	return most-least < 100*time.Millisecond
}

// isSplit reports whether the votes are split among contenders so that no contender can have a
// quorum.
func (t *tally) isSplit() bool {
	_, n := t.rival()
	return !t.won() && n+t.count(func(i int) bool { return !t.usable(i) }) < t.quorum.need
}

// maySplit reports whether the votes may be split. This is possible if this token has a vote and
// the rival has no quorum of known votes. A caller that took the rival for the holder would wait
// for the end of a lease that the rival gives back at once.
func (t *tally) maySplit() bool {
	_, n := t.rival()
	return !t.won() && n < t.quorum.need && t.count(t.voteCounts) > 0
}

// isOutdated reports whether a node gave no vote because its marker changed at that time. Another
// round may succeed, although enough nodes vote now.
func (t *tally) isOutdated() bool {
	return t.count(func(i int) bool {
		return errors.Is(t.errs[i], errMayForget) || errors.Is(t.errs[i], errBehindSet)
	}) > 0
}

// uncertain reports whether the known votes together with the unclear votes could be a quorum.
func (t *tally) uncertain() bool {
	if t.won() {
		return false
	}
	if _, err := t.result(); err == nil {
		return false
	}
	return t.count(func(i int) bool { return t.voteCounts(i) || t.isUnclear(i) }) >= t.quorum.need
}

// isUnclear reports whether node i may have voted although no answer shows the vote.
func (t *tally) isUnclear(i int) bool {
	return !t.replied.has(i) || t.errs[i] != nil && !isRefusal(t.errs[i])
}

// result returns the result of the round.
func (t *tally) result() (store.Grant, error) {
	need := t.quorum.need
	if fence, n := t.favourite(); n >= need {
		g := store.Grant{State: store.Granted, Fence: fence}
		for i, p := range t.polls {
			if t.voteCounts(i) && p.Fence == fence {
				g.FenceCount = t.shorterBlock(g.FenceCount, i)
			}
		}
		return g, nil
	}
	if g, ok := t.finalAnswer(); ok {
		return g, nil
	}
	if t.count(t.usable) < need || t.enough() || t.mayBeDone() || t.count(t.isBusy) == 0 {
		return store.Grant{}, t.failure()
	}
	return t.busyGrant(), nil
}

// isBusy reports whether node i has voted for another token.
func (t *tally) isBusy(i int) bool { return t.usable(i) && t.polls[i].State == store.Busy }

// busyGrant returns the answer for a key that another token holds: the holder, the time that is
// left, and the place in the queue.
func (t *tally) busyGrant() store.Grant {
	g := store.Grant{State: store.Busy}
	if t.isSplit() {
		g.Holder.Left = 2*time.Millisecond + rand.N(18*time.Millisecond) // a random time, so that the votes are not split again
		return g
	}
	holder, _ := t.rival()
	var lefts []time.Duration
	replied := 0
	for i, p := range t.polls {
		if !t.usable(i) || p.State != store.Busy {
			continue
		}
		if p.NotListening {
			replied--
		} else {
			replied++
		}
		lefts = append(lefts, p.Holder.Left)
		if p.Place > 0 && (g.Place == 0 || p.Place < g.Place) {
			g.Place = p.Place
		}
		if p.holder == holder && g.Holder == (store.Holder{}) {
			g.Holder = p.Holder
		}
	}
	g.NotListening = replied < 0
	// The key is free when so many of these leases have expired that the remaining leases are no
	// quorum.
	g.Holder.Left = runsOut(lefts, t.quorum.need-t.count(t.voteCounts))
	if t.maySplit() {
		// The caller must ask again as if it were in no queue, because a node that takes its vote
		// back notifies no waiter.
		g.Place = 0
	}
	return g
}

// runsOut returns the time after which k of the leases have expired, where lefts has the time that
// each lease has left. If k is less than 1, it counts as 1.
func runsOut(lefts []time.Duration, k int) time.Duration {
	slices.SortFunc(lefts, func(a, b time.Duration) int {
		if endless := cmp.Compare(min(b, 0), min(a, 0)); endless != 0 {
			return endless // a lease that does not expire is sorted last
		}
		return cmp.Compare(a, b)
	})
	return lefts[min(max(k, 1), len(lefts))-1]
}

// failure returns ErrQuorum with the errors of the nodes. The error is a Refusal when the answers
// prove that no quorum can have granted the key.
func (t *tally) failure() error {
	var all []error
	unclear, forGood := 0, 0
	for i, n := range t.quorum.nodes {
		err := t.errs[i]
		switch {
		case !t.replied.has(i):
			err = errSilent
		case err == nil && !t.usable(i):
			err = errClockOff(t.quorum.clocks.deviation(i))
		case err == nil && t.granted(i) && !t.voteCounts(i):
			err = errOtherVotes
		case err == nil:
			continue
		}
		all = append(all, n.error(err))
		if no, ok := errors.AsType[*store.Refusal](err); !ok {
			unclear++
		} else if !no.Temporary {
			forGood++
		}
	}
	err := error(&quorumError{
		summary:    fmt.Sprintf("%d of %d nodes answered, %d must agree", t.count(t.usable), len(t.polls), t.quorum.need),
		nodes:      all,
		retryAfter: t.retryAfter,
	})
	if unclear > 0 {
		return err
	}
	return &store.Refusal{Temporary: forGood <= len(t.polls)-t.quorum.need, Err: err}
}
