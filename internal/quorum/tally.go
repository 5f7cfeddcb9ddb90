package quorum

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// tally counts the answers to one round of an acquire.
type tally struct {
	quorum   *quorum
	polls    []poll
	errs     []error
	replied  nodes // nodes that have answered, also with an error
	clockOff nodes // nodes whose clocks were wrong when the last answer came
}

func newTally(q *quorum) *tally {
	return &tally{quorum: q, polls: make([]poll, len(q.nodes)), errs: make([]error, len(q.nodes))}
}

// record records the answer (p, err) of node i. Two answers of one server are one answer.
func (t *tally) record(i int, p poll, err error) {
	for j := range t.polls {
		if err == nil && p.server != "" && p.server == t.polls[j].server && t.errs[j] == nil {
			err = errTwice(j)
		}
	}
	t.replied = t.replied.plus(i)
	t.polls[i], t.errs[i] = p, err
	t.clockOff = t.replied & t.quorum.clocks.outliers(t.quorum.skew, 0)
}

// usable reports whether node i has answered and its clock is right. It uses t.clockOff and not the
// present offsets, because answers to other steps change these offsets, and all counts of a round
// must agree.
func (t *tally) usable(i int) bool {
	return t.replied.has(i) && t.errs[i] == nil && !t.clockOff.has(i)
}

// in reports whether node i has answered with the state s.
func (t *tally) in(i int, s store.State) bool { return t.usable(i) && t.polls[i].State == s }

// granted reports whether node i has voted.
func (t *tally) granted(i int) bool { return t.in(i, store.Granted) }

// isBusy reports whether node i has voted for another token.
func (t *tally) isBusy(i int) bool { return t.in(i, store.Busy) }

// isDone reports whether node i has the done mark.
func (t *tally) isDone(i int) bool { return t.in(i, store.Done) }

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
func (t *tally) enough() bool { return t.count(t.granted) >= t.quorum.need }

// won reports whether enough nodes have voted for the same fence.
func (t *tally) won() bool {
	_, n := most(t, t.granted, func(p *poll) uint64 { return p.Fence })
	return n >= t.quorum.need
}

// most returns the value that most of the chosen nodes' polls have, and the number of these polls.
func most[K comparable](t *tally, chosen func(i int) bool, value func(p *poll) K) (v K, n int) {
	for i := range t.polls {
		if !chosen(i) || n > 0 && value(&t.polls[i]) == v {
			continue
		}
		k := value(&t.polls[i])
		if m := t.count(func(j int) bool { return chosen(j) && value(&t.polls[j]) == k }); m > n {
			v, n = k, m
		}
	}
	return v, n
}

// rival returns the other holder that the largest number of nodes name, and this number.
func (t *tally) rival() (holder string, n int) {
	return most(t, t.isBusy, func(p *poll) string { return p.holder })
}

// proposal returns the fence to which all votes can be raised, and the number of fences that every
// vote has reserved.
func (t *tally) proposal() (fence uint64, block int) {
	for i, p := range t.polls {
		if t.granted(i) {
			fence = max(fence, p.Fence)
		}
	}
	return fence, t.shortestBlock(t.granted)
}

// shortestBlock returns the shortest block of the chosen votes.
func (t *tally) shortestBlock(chosen func(i int) bool) (block int) {
	for i, p := range t.polls {
		if chosen(i) && (block == 0 || p.FenceCount < block) {
			block = p.FenceCount
		}
	}
	return block
}

// finalAnswer returns an answer after which the owner gets no grant: revoked, undone or done. The
// result ok is false if there is no such answer. For "done", a quorum of nodes must have the mark,
// because a Complete that was refused may have left its mark at fewer nodes.
func (t *tally) finalAnswer() (g store.Grant, ok bool) {
	for _, s := range []store.State{store.Revoked, store.Undone} {
		for i := range t.polls {
			if t.in(i, s) {
				return t.polls[i].Grant, true
			}
		}
	}
	return store.Grant{State: store.Done}, t.count(t.isDone) >= t.quorum.need
}

// mayBeDone reports whether the work may be done: some nodes have the done mark, and together with
// the nodes without an answer they could be a quorum.
func (t *tally) mayBeDone() bool {
	return t.count(t.isDone) > 0 && t.count(func(i int) bool { return t.isDone(i) || !t.usable(i) }) >= t.quorum.need
}

// decided reports whether no further answer can change the result.
func (t *tally) decided() bool {
	if _, n := t.rival(); t.enough() || n >= t.quorum.need {
		return true
	}
	open := len(t.polls) - t.replied.count()
	_, final := t.finalAnswer()
	return final && t.count(t.granted)+open < t.quorum.need
}

// isSplit reports whether the votes are split among contenders so that no contender can have a
// quorum.
func (t *tally) isSplit() bool {
	_, n := t.rival()
	return !t.won() && n+len(t.polls)-t.count(t.usable) < t.quorum.need
}

// maySplit reports whether the votes may be split. This is possible if this token has a vote and
// the rival has no quorum of known votes. A caller that took the rival for the holder would wait
// for the end of a lease that the rival gives back at once.
func (t *tally) maySplit() bool {
	_, n := t.rival()
	return !t.won() && n < t.quorum.need && t.count(t.granted) > 0
}

// mayBeginWaits reports whether a node has refused its vote because it may have forgotten leases,
// and can begin its wait when it is asked again: now the nodes' clocks are known.
func (t *tally) mayBeginWaits() bool {
	return t.quorum.clocks.known(t.quorum.need) && slices.ContainsFunc(t.errs, func(err error) bool {
		no, ok := errors.AsType[*notVoting](err)
		return ok && no.idle
	})
}

// result returns the result of the round.
func (t *tally) result() (store.Grant, error) {
	need := t.quorum.need
	if fence, n := most(t, t.granted, func(p *poll) uint64 { return p.Fence }); n >= need {
		block := t.shortestBlock(func(i int) bool { return t.granted(i) && t.polls[i].Fence == fence })
		return store.Grant{State: store.Granted, Fence: fence, FenceCount: block}, nil
	}
	if g, ok := t.finalAnswer(); ok {
		return g, nil
	}
	if t.count(t.usable) < need || t.enough() || t.mayBeDone() || t.count(t.isBusy) == 0 {
		return store.Grant{}, t.failure()
	}
	return t.busyGrant(), nil
}

// busyGrant returns the answer for a key that another token holds: the holder, and the time that is
// left.
func (t *tally) busyGrant() store.Grant {
	g := store.Grant{State: store.Busy}
	if t.isSplit() {
		g.Holder.Left = 2*time.Millisecond + rand.N(18*time.Millisecond) // a random time, so that the votes are not split again
		return g
	}
	holder, _ := t.rival()
	var lefts []time.Duration
	for i, p := range t.polls {
		if !t.isBusy(i) {
			continue
		}
		if lefts = append(lefts, p.Holder.Left); p.holder == holder && g.Holder == (store.Holder{}) {
			g.Holder = p.Holder
		}
	}
	// The key is free when so many of these leases have expired that the remaining leases are no
	// quorum.
	g.Holder.Left = runsOut(lefts, t.quorum.need-t.count(t.granted))
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
	err := error(t.quorum.newError(fmt.Sprintf("%d of %d nodes answered, %d must agree", t.count(t.usable), len(t.polls), t.quorum.need), all))
	if unclear > 0 {
		return err
	}
	return &store.Refusal{Temporary: forGood <= len(t.polls)-t.quorum.need, Err: err}
}
