package quorum

import (
	"context"
	"errors"

	"github.com/latchkit/latchkit/locker/store"
)

// warn reports a change of node i's standing, with the given code and text.
func (q *quorum) warn(code string, i int, text string) {
	if q.report != nil {
		n := q.nodes[i]
		n.links.Pool.Do(func() { q.report(store.Warning{Code: code, Text: n.error(errors.New(text)).Error()}) })
	}
}

// Watch makes the quorum report changes of its nodes' standing.
func (q *quorum) Watch(report func(store.Warning)) { q.report = report }

// Nodes looks at all nodes, makes the changes that are due, and returns the state of each node.
func (q *quorum) Nodes(ctx context.Context) ([]store.Node, error) {
	r := q.whole
	if q.slotted {
		r = q.rosterOf(0)
	}
	r.awaitTend(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]store.Node, len(q.nodes))
	for i, n := range q.nodes {
		m := &r.members[i]
		all[i] = store.Node{Index: i, Addr: n.addr, State: m.state, Left: m.remaining, Offset: q.clocks.offset(i)}
		if m.reason != nil {
			all[i].Reason = m.reason.Error()
		}
	}
	return all, ctx.Err()
}
