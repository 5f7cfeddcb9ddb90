package quorum

import (
	"context"
	"fmt"
	"sync"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/errtype"
	"github.com/latchkit/latchkit/locker/store"
)

// Release takes the votes back. It is Released when a quorum had given them. A node that does not
// answer is told again until it does, once the others have decided; as long as they have not, the
// Engine repeats the whole.
//
// Next is asked for when the key is free. That is a round trip more than on one server, where it is
// the same step.
func (q *quorum) Release(ctx context.Context, c store.Claim) (store.Grant, error) {
	g, err := q.release(lasting(ctx), c)
	if err == nil && g.State == store.Released && c.Next != nil && c.KeepFor == 0 {
		if next, err := q.Acquire(ctx, *c.Next); err == nil {
			g.Next = &next
		}
	}
	return g, err
}

func (q *quorum) release(ctx context.Context, c store.Claim) (store.Grant, error) {
	tell, tombstones, later := q.all(), nodes(0), nodes(0)
	b := q.ballots.of(c.Owner)
	if b != nil {
		tell, tombstones, later = b.leave(c.TombstoneTTL > 0)
	}
	open := farewell{quorum: q}
	claim := func(i int) store.Claim {
		c := c
		c.Next = nil
		if tombstones.has(i) {
			c.TombstoneTTL = max(c.TombstoneTTL, calls.UndoFor(true, c.TTL))
		}
		return c
	}
	t := count{quorum: q, gone: len(q.nodes)}
	for n := range q.each(tell | later) {
		t.gone--
		if tell.has(n.index) && q.behind(n) {
			tell = tell.without(n.index)
			open.failed(n, claim(n.index), errBehind)
			t.hear(n, store.Grant{}, errBehind)
		}
	}
	first, texts := q.nodes[0], []string(nil)
	if c.Complete {
		texts = q.roster(c.Key).known(ctx)
	}
	channel, call := first.channelOf(&c), first.taking(&c, taking{}) // its words are made once, because most nodes are sent the same
	f := fanOut(q, tell, isReleased, func(n *node) (g store.Grant, err error) {
		switch {
		case c.Complete:
			g, err = n.take(ctx, claim(n.index), taking{text: texts[n.index]})
		case tombstones.has(n.index) || n.channelOf(&c) != channel:
			g, err = n.take(ctx, claim(n.index), taking{})
		default:
			call := call.Again()
			g, err = takenOf(call.Run(ctx, n.Steps))
		}
		if err != nil {
			open.failed(n, claim(n.index), err)
		}
		return g, err
	})
	defer f.done()
	for !t.decided() {
		a, ok := f.next()
		if !ok {
			break
		}
		t.hear(q.nodes[a.node], a.value, a.err)
	}
	g, err := t.result(f.open)
	if err == nil {
		open.decided()
		if c.TombstoneTTL == 0 { // otherwise an acquire that has not begun yet must find that it is too late
			q.ballots.drop(c.Owner)
		}
	}
	return g, err
}

func isReleased(g store.Grant, err error) bool { return err == nil && g.State == store.Released }

// farewell is what is left of a release when it was decided: nodes that have not heard of it.
type farewell struct {
	quorum *quorum

	mu    sync.Mutex
	done  bool
	fails []func()
}

// failed says that a node has not confirmed. It does not need to when the Engine repeats the
// release.
func (f *farewell) failed(n *node, c store.Claim, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if no, ok := errtype.As[*store.Refusal](err); ok && !no.Temporary {
		return // it refuses for good: the lease runs out
	}
	if f.done {
		n.clean(c)
	} else {
		f.fails = append(f.fails, func() { n.clean(c) })
	}
}

func (f *farewell) decided() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = true
	for _, clean := range f.fails {
		clean()
	}
}

// count counts the answers to a release.
type count struct {
	quorum   *quorum
	released int
	gone     int // nodes where it is not the owner's
	done     int // of those: nodes that have the done mark
	revoked  bool
	reason   string
	writer   bool // waits, says a node
	errs     []error
}

func (t *count) hear(n *node, g store.Grant, err error) {
	switch {
	case err != nil:
		t.errs = append(t.errs, n.error(err))
		return
	case g.State == store.Released:
		t.released++
		t.writer = t.writer || g.Writer
		return
	case g.State == store.Revoked:
		t.revoked, t.reason = true, g.Reason
	case g.State == store.Done:
		t.done++
	}
	t.gone++
}

// decided says whether no further answer can change anything.
func (t *count) decided() bool {
	need, all := t.quorum.need, len(t.quorum.nodes)
	if t.released >= need || t.gone <= all-need {
		return t.released >= need
	}
	open := all - t.released - t.gone - len(t.errs)
	return t.marked() >= need || t.marked()+open < need
}

// marked is how many nodes have the done mark, if one was asked for: only what a quorum has, is
// found by every later acquire.
func (t *count) marked() int { return t.released + t.done }

func (t *count) result(silent nodes) (store.Grant, error) {
	switch {
	case t.released >= t.quorum.need:
		return store.Grant{State: store.Released}, nil
	case !t.decided():
		for n := range t.quorum.each(silent) {
			t.errs = append(t.errs, n.error(errSilent))
		}
		return store.Grant{}, &quorumError{
			what:  fmt.Sprintf("%d of %d nodes answered, %d must agree", t.released+t.gone, len(t.quorum.nodes), t.quorum.need),
			nodes: t.errs,
		}
	case t.revoked:
		return store.Grant{State: store.Revoked, Reason: t.reason}, nil
	case t.done > 0 && t.marked() >= t.quorum.need:
		return store.Grant{State: store.Done}, nil
	}
	return store.Grant{State: store.NotOurs}, nil
}

// Renew lengthens the votes. A lease is renewed when a quorum of them was, and lost when so many
// nodes say that it is not the owner's that the others are no quorum. What is neither has no
// answer.
func (q *quorum) Renew(ctx context.Context, cs []store.Claim) ([]store.Grant, error) {
	ctx = lasting(ctx)
	q.ballots.renewed(cs)
	texts := make(map[*roster][]string)
	for _, c := range cs {
		if r := q.roster(c.Key); texts[r] == nil {
			texts[r] = r.known(ctx)
		}
	}
	f := fanOut(q, q.all(), nil, func(n *node) ([]store.Grant, error) { return n.renew(ctx, cs, texts) })
	defer f.done()
	counts := make([]count, len(cs))
	open := len(cs)
	var errs []error
	for open > 0 {
		a, ok := f.next()
		if !ok {
			break
		}
		n := q.nodes[a.node]
		if a.err != nil {
			errs = append(errs, n.error(a.err))
			continue
		}
		for i, g := range a.value {
			t := &counts[i]
			t.quorum = q
			was := t.decided()
			if g.Err != nil {
				t.hear(n, store.Grant{}, g.Err)
				continue
			}
			if g.State == store.Granted { // where a release takes, a renewal keeps
				g.State = store.Released
			}
			if t.hear(n, g, nil); !was && t.decided() {
				open--
			}
		}
	}
	if open == len(cs) && open > 0 {
		for n := range q.each(f.open) {
			errs = append(errs, n.error(errSilent))
		}
		return nil, &quorumError{what: fmt.Sprintf("the votes of %d of %d nodes must be renewed", q.need, len(q.nodes)), nodes: errs}
	}
	grants := make([]store.Grant, len(cs))
	for i := range counts {
		t := &counts[i]
		t.quorum, t.errs = q, append(t.errs, errs...)
		g, err := t.result(f.open)
		if g.State == store.Released {
			g.State, g.Writer = store.Granted, t.writer
		}
		g.Err = err
		grants[i] = g
	}
	return grants, nil
}
