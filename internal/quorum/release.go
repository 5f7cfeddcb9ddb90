package quorum

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// beginRelease withdraws the votes, and passes the result to onAnswer.
func (q *quorum) beginRelease(ctx context.Context, c store.Claim, onAnswer func(store.Grant, error)) {
	p := plannedRelease{atOnce: q.allNodes()}
	b := q.ballots.get(c.Owner)
	if b != nil {
		p = b.markReleasing(c)
	}
	withTombstone := c
	withTombstone.TombstoneTTL = max(c.TombstoneTTL, calls.UndoFor(true, c.TTL))
	claim := func(n *node) *store.Claim {
		if p.tombstones.has(n.index) {
			return &withTombstone
		}
		return &c
	}
	// When the release is decided, the nodes that have not confirmed it get it once more. If it stays
	// undecided, the Engine repeats the whole release.
	failed := make(map[*node]error)
	var decided atomic.Bool
	repeat := func(n *node, err error) {
		if no, ok := errors.AsType[*store.Refusal](err); err != nil && (!ok || no.Temporary || no.UntilRepaired) && decided.Load() {
			n.repeatRelease(*claim(n))
		}
	}
	t := &releaseTally{quorum: q, released: p.confirmed.count(), notHeld: len(q.nodes) - (p.atOnce | p.later | p.confirmed).count()}
	for n := range q.eachNode(p.later) {
		t.record(n, store.Grant{}, errUnderWay)
	}
	for n := range q.eachNode(p.atOnce) {
		if q.lags(n) {
			p.atOnce = p.atOnce.minus(n.index)
			failed[n] = errLags
			t.record(n, store.Grant{}, errLags)
		}
	}
	g := &gather[store.Grant]{quorum: q, decided: t.decided, late: repeat, take: func(n *node, g store.Grant, err error) {
		if t.record(n, g, err); err != nil {
			failed[n] = err
		}
	}}
	g.end = func() {
		answer, err := t.result(g.open)
		if err == nil {
			decided.Store(true)
			for n, err := range failed {
				repeat(n, err)
			}
			if b != nil && c.TombstoneTTL > 0 {
				b.undone()
			} else {
				q.ballots.drop(c.Owner)
			}
		}
		onAnswer(answer, err)
	}
	var shared [2]*redisstore.Call // the words of each call are made once
	g.start(p.atOnce, func(n *node, onAnswer func(store.Grant, error)) {
		i := 0
		if p.tombstones.has(n.index) {
			i = 1
		}
		if shared[i] == nil {
			shared[i] = releaseCall(claim(n), releaseArgs{})
		}
		call := shared[i].Again()
		startRelease(ctx, n.links, &call, link.Release, func(g store.Grant, err error) {
			if b != nil && err == nil && g.State == store.Released {
				b.recordReleased(n.index, &c)
			}
			onAnswer(g, err)
		})
	})
}

// releaseTally counts the answers to a release or a renewal. For a renewal, Released means that the
// node has renewed its vote.
type releaseTally struct {
	quorum    *quorum
	released  int
	notHeld   int // number of nodes where the owner has no lease, also nodes that never got its acquire
	doneMarks int // number of the nodes in notHeld that have the done mark
	revoked   bool
	reason    string
	errs      []error
}

// record counts the answer (g, err) of node n.
func (t *releaseTally) record(n *node, g store.Grant, err error) {
	switch {
	case err != nil:
		t.errs = append(t.errs, n.error(err))
		return
	case g.State == store.Released:
		t.released++
		return
	case g.State == store.Revoked:
		t.revoked, t.reason = true, g.Reason
	case g.State == store.Done:
		t.doneMarks++
	}
	t.notHeld++
}

// decided reports whether no further answer can change the result.
func (t *releaseTally) decided() bool {
	need, all := t.quorum.need, len(t.quorum.nodes)
	// As long as need nodes may have held the lease, only Released is certain.
	if t.released >= need || t.notHeld <= all-need {
		return t.released >= need
	}
	unknown := all - t.released - t.notHeld // a node whose answer was lost may have the done mark
	return t.marked() >= need || t.marked()+unknown < need
}

// marked returns the number of nodes that have the done mark, if the release sets a done mark. A
// later acquire is sure to find the mark only if a quorum of nodes has it.
func (t *releaseTally) marked() int { return t.released + t.doneMarks }

// result returns the result of the counted answers. The nodes in open have not answered.
func (t *releaseTally) result(open nodes) (store.Grant, error) {
	switch {
	case t.released >= t.quorum.need:
		return store.Grant{State: store.Released}, nil
	case !t.decided():
		errs := t.errs
		for n := range t.quorum.eachNode(open) {
			errs = append(errs, n.error(errSilent))
		}
		return store.Grant{}, t.quorum.errTooFew("answered", t.released+t.notHeld, errs)
	case t.revoked:
		return store.Grant{State: store.Revoked, Reason: t.reason}, nil
	case t.doneMarks > 0 && t.marked() >= t.quorum.need:
		return store.Grant{State: store.Done}, nil
	}
	return store.Grant{State: store.NotOurs}, nil
}

// Renew renews the votes. A lease is renewed when a quorum of its votes is renewed. A lease is
// lost when the votes that may remain are no quorum. Otherwise the result is an error.
func (q *quorum) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	ctx = context.WithoutCancel(ctx)
	slotted := false
	for _, n := range q.nodes {
		slotted = slotted || n.cluster
	}
	parts := make(map[uint16][]int) // the indices of the leases in each slot
	for i, c := range cs {
		slot := uint16(0)
		if slotted {
			slot = redisstore.SlotOf(c.Key)
		}
		parts[slot] = append(parts[slot], i)
	}
	grants := make([]store.Grant, len(cs))
	var all sync.WaitGroup
	for _, part := range parts {
		all.Go(func() { q.renewPart(ctx, cs, part, grants) })
	}
	all.Wait()
	q.findRevocations(ctx, cs, grants)
	for _, g := range grants {
		if g.Err == nil {
			return grants, nil
		}
	}
	if len(grants) > 0 {
		return nil, grants[0].Err
	}
	return grants, nil
}

// renewPart renews the leases of cs with the indices in part, whose keys have one marker at each
// node, and puts the results into grants.
func (q *quorum) renewPart(ctx context.Context, cs []store.Claim, part []int, grants []store.Grant) {
	claims := make([]store.Claim, len(part))
	counts := make([]releaseTally, len(part))
	for i, at := range part {
		claims[i], counts[i].quorum = cs[at], q
	}
	undecided, servers := len(part), make(map[string]bool)
	open := gatherAll(q, q.allNodes(), func(n *node, onAnswer func(renewed, error)) {
		n.renew(ctx, claims, onAnswer)
	}, func() bool { return undecided == 0 }, func(n *node, r renewed, err error) {
		if err == nil && servers[r.server] {
			err = errTwice(n.index)
		}
		servers[r.server] = true
		for i := range counts {
			g, err := store.Grant{State: store.NotOurs}, err
			if err == nil && r.yes[i] == '1' {
				g.State, err = store.Released, r.clockOff
			}
			was := counts[i].decided()
			if counts[i].record(n, g, err); !was && counts[i].decided() {
				undecided--
			}
		}
	})
	for i := range counts {
		g, err := counts[i].result(open)
		if g.State == store.Released {
			g.State = store.Granted
		}
		g.Err = err
		grants[part[i]] = g
	}
}

// findRevocations finds out which of the lost leases were revoked, and records this in grants.
// Lease i has the claim cs[i] and the answer grants[i]. It reads all notes at once.
func (q *quorum) findRevocations(ctx context.Context, cs []store.Claim, grants []store.Grant) {
	var all sync.WaitGroup
	for i := range grants {
		if grants[i].State != store.NotOurs || grants[i].Err != nil {
			continue
		}
		all.Go(func() {
			answers := 0 // a revocation leaves its note at a quorum of nodes
			gatherAll(q, q.allNodes(), async(func(n *node) (reason *string, err error) {
				if text, ok := n.Revoked(ctx, cs[i]); ok {
					return &text, nil
				}
				return nil, nil
			}), func() bool { return answers >= q.need || grants[i].State == store.Revoked }, func(_ *node, reason *string, _ error) {
				if answers++; reason != nil {
					grants[i].State, grants[i].Reason = store.Revoked, *reason
				}
			})
		})
	}
	all.Wait()
}
