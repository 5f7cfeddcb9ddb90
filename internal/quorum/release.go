package quorum

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/store"
)

// release withdraws the votes. The result is Released when a quorum of votes existed. When enough
// answers have decided the release, the quorum repeats it at each node that has not confirmed it.
// If the answers do not decide the release, the Engine repeats the whole release.
func (q *quorum) release(ctx context.Context, c store.Claim, onAnswer func(store.Grant, error)) {
	atOnce, later, unclear, confirmed := q.allNodes(), nodes(0), nodes(0), nodes(0)
	b := q.ballots.get(c.Owner)
	if b != nil {
		atOnce, later, unclear, confirmed = b.markReleasing(&c)
	}
	claim := func(i int) store.Claim {
		c := c
		if unclear.has(i) {
			c.TombstoneTTL = max(c.TombstoneTTL, calls.UndoFor(true, c.TTL))
		}
		return c
	}
	repeat := func(i int, err error) {
		if no, ok := errors.AsType[*store.Refusal](err); err != nil && (!ok || no.Temporary || no.UntilRepaired) {
			q.nodes[i].repeatRelease(claim(i))
		}
	}
	t := &releaseTally{quorum: q, released: confirmed.count(), notHeld: len(q.nodes) - (atOnce | later | confirmed).count()}
	for n := range q.eachNode(later) {
		t.fail(n.index, errUnderWay)
	}
	gather(q, q.patience, atOnce, func(n *node, onAnswer func(store.Grant, error)) {
		if n.lags() {
			onAnswer(store.Grant{}, errLags)
			return
		}
		n.release(ctx, claim(n.index), releaseArgs{}, link.Release, onAnswer)
	}, t.decided, func(i int, g store.Grant, err error, late bool) {
		if b != nil && g.State == store.Released {
			b.recordReleased(i)
		}
		if !late {
			t.record(i, g, err)
		} else if t.decided() {
			repeat(i, err)
		}
	}, func(open nodes) {
		g, err := t.result(open)
		if err != nil {
			onAnswer(g, err)
			return
		}
		for n := range q.eachNode(atOnce &^ open) {
			if t.errs != nil {
				repeat(n.index, t.errs[n.index])
			}
		}
		if b != nil && c.TombstoneTTL > 0 {
			b.forgetSoon()
		} else {
			q.ballots.drop(c.Owner)
		}
		onAnswer(g, nil)
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
	errs      []error // by node; nil: none has failed
}

// record counts the answer (g, err) of node i.
func (t *releaseTally) record(i int, g store.Grant, err error) {
	switch {
	case err != nil:
		t.fail(i, err)
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

func (t *releaseTally) fail(i int, err error) {
	if t.errs == nil {
		t.errs = make([]error, len(t.quorum.nodes))
	}
	t.errs[i] = err
}

// decided reports whether no further answer can change the result.
func (t *releaseTally) decided() bool {
	need, all := t.quorum.need, len(t.quorum.nodes)
	// As long as need nodes may have held the lease, only Released is certain.
	if t.released >= need || t.notHeld <= all-need {
		return t.released >= need
	}
	// A later acquire is sure to find the done mark only if a quorum of nodes has it. A node whose
	// answer was lost may have it.
	marked, unknown := t.released+t.doneMarks, all-t.released-t.notHeld
	return marked >= need || marked+unknown < need
}

// result returns the result of the counted answers. The nodes in open have not answered.
func (t *releaseTally) result(open nodes) (store.Grant, error) {
	switch {
	case t.released >= t.quorum.need:
		return store.Grant{State: store.Released}, nil
	case !t.decided():
		for n := range t.quorum.eachNode(open) {
			t.fail(n.index, errSilent)
		}
		return store.Grant{}, t.quorum.errTooFew("answered", t.released+t.notHeld, t.errs)
	case t.revoked:
		return store.Grant{State: store.Revoked, Reason: t.reason}, nil
	case t.doneMarks > 0 && t.released+t.doneMarks >= t.quorum.need:
		return store.Grant{State: store.Done}, nil
	}
	return store.Grant{State: store.NotOurs}, nil
}

// Renew renews the votes. A lease is renewed when a quorum of its votes is renewed. A lease is
// lost when the votes that may remain are no quorum. Otherwise the result is an error.
func (q *quorum) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	counts := make([]releaseTally, len(cs))
	for i := range counts {
		counts[i].quorum = q
	}
	servers := make(map[string]int)
	open := gatherAll(q, q.patience, func(n *node, onAnswer func(renewed, error)) {
		n.renew(ctx, cs, onAnswer)
	}, func() bool {
		return !slices.ContainsFunc(counts, func(t releaseTally) bool { return !t.decided() })
	}, func(at int, r renewed, err error) {
		if other, twice := servers[r.server]; err == nil && twice {
			err = errTwice(other)
		}
		servers[r.server] = at
		for i := range counts {
			g, err := store.Grant{State: store.NotOurs}, err
			if err == nil && r.yes[i] == '1' {
				g.State, err = store.Released, r.clockOff
			}
			counts[i].record(at, g, err)
		}
	})
	grants := make([]store.Grant, len(cs))
	var all sync.WaitGroup
	for i := range counts {
		g, err := counts[i].result(open)
		if g.State == store.Released {
			g.State = store.Granted
		}
		g.Err = err
		grants[i] = g
		if g.State == store.NotOurs {
			all.Go(func() { q.findRevocation(ctx, &cs[i], &grants[i]) })
		}
	}
	all.Wait()
	return grants, nil
}

// findRevocation finds out whether the lost lease of c was revoked, and records this in g. A
// revocation leaves its note at a quorum of nodes.
func (q *quorum) findRevocation(ctx context.Context, c *store.Claim, g *store.Grant) {
	found := func(text *string) bool { return text != nil }
	all := askEach(q, q.patience, func(n *node) (*string, error) {
		if text, ok := n.Revoked(ctx, *c); ok {
			return &text, nil
		}
		return nil, nil
	}, func(all answers[*string]) bool {
		return all.received().count() >= q.need || slices.ContainsFunc(all.values, found)
	})
	if i := slices.IndexFunc(all.values, found); i >= 0 {
		g.State, g.Reason = store.Revoked, *all.values[i]
	}
}
