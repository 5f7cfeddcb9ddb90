package quorum

import (
	"cmp"
	"errors"
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
	_, _, t.clockOff = t.quorum.clocks.compare(t.quorum.skew)
}

// usable returns the nodes that have answered and whose clocks are right. It uses t.clockOff and not
// the present offsets, because answers to other steps change these offsets, and all counts of a
// round must agree.
func (t *tally) usable() (set nodes) {
	for i, err := range t.errs {
		if err == nil && t.replied.has(i) && !t.clockOff.has(i) {
			set = set.plus(i)
		}
	}
	return set
}

// in returns the nodes that have answered with the state s.
func (t *tally) in(s store.State) (set nodes) {
	for n := range t.quorum.eachNode(t.usable()) {
		if t.polls[n.index].State == s {
			set = set.plus(n.index)
		}
	}
	return set
}

// enough reports whether enough nodes have voted, for any fence.
func (t *tally) enough() bool { return t.in(store.Granted).count() >= t.quorum.need }

// agreed returns the fence for which the largest number of nodes have voted, and these nodes.
func (t *tally) agreed() (fence uint64, voters nodes) {
	return most(t.quorum, t.in(store.Granted), func(i int) uint64 { return t.polls[i].Fence })
}

// won reports whether enough nodes have voted for the same fence.
func (t *tally) won() bool {
	_, voters := t.agreed()
	return voters.count() >= t.quorum.need
}

// rival returns the other holder that the largest number of nodes name, and these nodes.
func (t *tally) rival() (holder string, by nodes) {
	return most(t.quorum, t.in(store.Busy), func(i int) string { return t.polls[i].holder })
}

// proposal returns the largest fence of the votes in set, to which all can be raised, and the number
// of fences that every vote has reserved.
func (t *tally) proposal(set nodes) (fence uint64, block int) {
	for n := range t.quorum.eachNode(set) {
		p := &t.polls[n.index]
		if fence = max(fence, p.Fence); block == 0 || p.FenceCount < block {
			block = p.FenceCount
		}
	}
	return fence, block
}

// finalAnswer returns an answer after which the owner gets no grant: revoked, undone or done. The
// result ok is false if there is no such answer. For "done", a quorum of nodes must have the mark,
// because a Complete that was refused may have left its mark at fewer nodes.
func (t *tally) finalAnswer() (g store.Grant, ok bool) {
	for _, s := range []store.State{store.Revoked, store.Undone} {
		if from := t.in(s); from != 0 {
			return t.polls[from.first()].Grant, true
		}
	}
	return store.Grant{State: store.Done}, t.in(store.Done).count() >= t.quorum.need
}

// mayBeDone reports whether the work may be done: some nodes have the done mark, and together with
// the nodes without an answer they could be a quorum.
func (t *tally) mayBeDone() bool {
	done := t.in(store.Done)
	return done != 0 && done.count()+len(t.polls)-t.usable().count() >= t.quorum.need
}

// decided reports whether no further answer can change the result.
func (t *tally) decided() bool {
	if t.enough() || !t.isSplit() {
		return true
	}
	open := len(t.polls) - t.replied.count()
	_, final := t.finalAnswer()
	return final && t.in(store.Granted).count()+open < t.quorum.need
}

// isSplit reports whether the votes may be split among contenders, because no rival has a quorum of
// known votes. A caller that took the rival for the holder would wait for the end of a lease that
// the rival gives back at once.
func (t *tally) isSplit() bool {
	_, by := t.rival()
	return by.count() < t.quorum.need
}

// result returns the result of the round.
func (t *tally) result() (store.Grant, error) {
	if fence, voters := t.agreed(); voters.count() >= t.quorum.need {
		_, block := t.proposal(voters)
		return store.Grant{State: store.Granted, Fence: fence, FenceCount: block}, nil
	}
	if g, ok := t.finalAnswer(); ok {
		return g, nil
	}
	if t.usable().count() < t.quorum.need || t.enough() || t.mayBeDone() || t.in(store.Busy) == 0 {
		return store.Grant{}, t.failure()
	}
	return t.busyGrant(), nil
}

// busyGrant returns the answer for a key that another token holds: the holder, and the time that is
// left.
func (t *tally) busyGrant() store.Grant {
	_, by := t.rival()
	g := store.Grant{State: store.Busy, Holder: t.polls[by.first()].Holder}
	var lefts []time.Duration
	for n := range t.quorum.eachNode(t.in(store.Busy)) {
		lefts = append(lefts, t.polls[n.index].Holder.Left)
	}
	// The key is free when so many of these leases have expired that the remaining leases are no
	// quorum.
	g.Holder.Left = runsOut(lefts, t.quorum.need-t.in(store.Granted).count())
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
	errs := slices.Clone(t.errs)
	unclear, forGood := 0, 0
	for i, err := range errs {
		switch {
		case !t.replied.has(i):
			err = errSilent
		case err == nil && t.clockOff.has(i):
			err = t.quorum.errClockOff(i)
		case err == nil:
			continue
		}
		errs[i] = err
		if no, ok := errors.AsType[*store.Refusal](err); !ok {
			unclear++
		} else if !no.Temporary {
			forGood++
		}
	}
	err := t.quorum.errTooFew("answered", t.usable().count(), errs)
	if unclear > 0 {
		return err
	}
	return &store.Refusal{Temporary: forGood <= len(t.polls)-t.quorum.need, Err: err}
}
