package quorum

import (
	"context"
	"errors"
	"sync"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/store"
)

// beginRelease withdraws the votes, and passes the result to onAnswer. With c.Complete, texts has
// the text of each node's marker.
func (q *quorum) beginRelease(ctx context.Context, c store.Claim, texts []string, onAnswer func(store.Grant, error)) {
	p := plannedRelease{atOnce: q.allNodes()}
	b := q.ballots.get(c.Owner)
	if b != nil {
		p = b.markReleasing(c)
	}
	unconfirmed := new(leftovers)
	claim := func(n *node) store.Claim {
		c := c
		if p.tombstones.has(n.index) {
			c.TombstoneTTL = max(c.TombstoneTTL, calls.UndoFor(true, c.TTL))
		}
		return c
	}
	t := &releaseTally{quorum: q, released: p.confirmed.count(), notHeld: len(q.nodes) - (p.atOnce | p.later | p.confirmed).count()}
	for n := range q.eachNode(p.later) {
		t.record(n, store.Grant{}, errUnderWay)
	}
	for n := range q.eachNode(p.atOnce) {
		if q.lags(n) {
			p.atOnce = p.atOnce.minus(n.index)
			unconfirmed.add(n, claim(n), errLags)
			t.record(n, store.Grant{}, errLags)
		}
	}
	step := &taker[store.Grant]{take: t.recordAnswer, decided: func(bool) bool { return t.decided() }}
	step.end = func() {
		g, err := t.result(step.fan.silentErrors)
		if err == nil {
			unconfirmed.repeatAll()
			if c.TombstoneTTL == 0 {
				q.ballots.drop(c.Owner)
			} else if b != nil { // a later acquire of the token must find the ballot, and must fail
				b.finish()
			}
		}
		onAnswer(g, err)
	}
	first := q.nodes[0]
	// The words of the call are made once, because most nodes get the same call.
	channel, call := first.channelOf(&c), first.releaseCall(&c, releaseArgs{})
	step.start(q, p.atOnce, isReleased, func(n *node, onAnswer func(store.Grant, error)) {
		end := func(g store.Grant, err error) {
			if err != nil {
				unconfirmed.add(n, claim(n), err)
			} else if b != nil && g.State == store.Released {
				b.recordReleased(n.index, &c)
			}
			onAnswer(g, err)
		}
		switch {
		case c.Complete:
			n.release(ctx, claim(n), releaseArgs{text: texts[n.index]}, end)
		case p.tombstones.has(n.index) || n.channelOf(&c) != channel:
			n.release(ctx, claim(n), releaseArgs{}, end)
		default:
			call := call.Again()
			n.startRelease(ctx, &call, link.Release, end)
		}
	})
}

// isReleased reports whether the answer (g, err) of a node confirms a release.
func isReleased(g store.Grant, err error) bool { return err == nil && g.State == store.Released }

// leftovers are the nodes that have not confirmed a release. When the release is decided, they get
// it once more. If the release stays undecided, the Engine repeats the whole release.
type leftovers struct {
	mu      sync.Mutex
	decided bool
	repeats []func()
}

// add records that node n has not confirmed the release of the claim c, because of the error
// err.
func (l *leftovers) add(n *node, c store.Claim, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if no, ok := errors.AsType[*store.Refusal](err); ok && !no.Temporary && !no.UntilRepaired {
		return // a node that refuses permanently keeps the lease until the lease expires
	}
	if l.repeats = append(l.repeats, func() { n.repeatRelease(c) }); l.decided {
		n.repeatRelease(c)
	}
}

// repeatAll sends the release again to the nodes that have not confirmed it, and from then on to
// each node that add records.
func (l *leftovers) repeatAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.decided = true
	for _, clean := range l.repeats {
		clean()
	}
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

// recordAnswer counts the answer a.
func (t *releaseTally) recordAnswer(a answer[store.Grant]) {
	t.record(t.quorum.nodes[a.node], a.value, a.err)
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

// result returns the result of the counted answers. The function silent returns an error for each
// node that has not answered.
func (t *releaseTally) result(silent func() []error) (store.Grant, error) {
	switch {
	case t.released >= t.quorum.need:
		return store.Grant{State: store.Released}, nil
	case !t.decided():
		return store.Grant{}, t.quorum.errTooFew("answered", t.released+t.notHeld, append(t.errs, silent()...))
	case t.revoked:
		return store.Grant{State: store.Revoked, Reason: t.reason}, nil
	case t.doneMarks > 0 && t.marked() >= t.quorum.need:
		return store.Grant{State: store.Done}, nil
	}
	return store.Grant{State: store.NotOurs}, nil
}

// renewal is the renewal of leases whose keys have the same roster.
type renewal struct {
	places []int // indices of the leases in the whole batch
	claims []store.Claim
	fan    *fan[[]store.Grant]
}

// Renew renews the votes. A lease is renewed when a quorum of its votes is renewed. A lease is
// lost when the votes that may remain are no quorum. Otherwise the result is an error.
func (q *quorum) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	ctx = context.WithoutCancel(ctx)
	q.ballots.prolong(cs)
	parts := make(map[*roster]*renewal)
	for i, c := range cs {
		r := q.roster(c.Key)
		if parts[r] == nil {
			parts[r] = new(renewal)
		}
		parts[r].places, parts[r].claims = append(parts[r].places, i), append(parts[r].claims, c)
	}
	for r, p := range parts {
		texts := r.ensureTexts(ctx)
		p.fan = fanOut(q, q.allNodes(), nil, func(n *node, onAnswer func([]store.Grant, error)) {
			n.renew(ctx, r, p.claims, texts[n.index], onAnswer)
		})
	}
	grants := make([]store.Grant, len(cs))
	for _, p := range parts {
		p.collect(q, grants)
	}
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

// collect takes answers until they decide the renewal of each lease, and puts the results into
// grants, which has a place for each lease of the whole batch.
func (p *renewal) collect(q *quorum, grants []store.Grant) {
	defer p.fan.stop()
	counts := make([]releaseTally, len(p.claims))
	for i := range counts {
		counts[i].quorum = q
	}
	for open := len(counts); open > 0; {
		a, ok := p.fan.next()
		if !ok {
			break
		}
		for i := range counts {
			t, g, err := &counts[i], store.Grant{}, a.err
			if err == nil {
				g, err = a.value[i], a.value[i].Err
			}
			was := t.decided()
			if t.record(q.nodes[a.node], g, err); !was && t.decided() {
				open--
			}
		}
	}
	for i := range counts {
		g, err := counts[i].result(p.fan.silentErrors)
		if g.State == store.Released {
			g.State = store.Granted
		}
		g.Err = err
		grants[p.places[i]] = g
	}
}

// findRevocations finds out which of the lost leases were revoked, and records this in grants.
// Lease i has the claim cs[i] and the answer grants[i]. It reads all notes at once.
func (q *quorum) findRevocations(ctx context.Context, cs []store.Claim, grants []store.Grant) {
	notes := make(map[int]*fan[*string])
	for i, g := range grants {
		if g.State == store.NotOurs {
			notes[i] = fanOut(q, q.allNodes(), nil, async(func(n *node) (*string, error) {
				if reason, ok := n.Revoked(ctx, cs[i]); ok {
					return &reason, nil
				}
				return nil, nil
			}))
		}
	}
	for i, f := range notes {
		for answers := 0; answers < q.need; answers++ { // a revocation leaves its note at a quorum of nodes
			a, ok := f.next()
			if !ok {
				break
			}
			if a.value != nil {
				grants[i].State, grants[i].Reason = store.Revoked, *a.value
				break
			}
		}
		f.stop()
	}
}
