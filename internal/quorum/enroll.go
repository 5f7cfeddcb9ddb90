package quorum

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// operatorTimeout is the shortest time-out of an operator's call at a node. It is longer than the
// usual time-out, because an operator's call needs the answers of all nodes.
const operatorTimeout = 2 * time.Second

// callsAtOnce is how many calls Enroll makes to one node at the same time. The calls of 32 slots
// share their way to a server of a Cluster: 16 384 slots are enrolled in half of the time that 8 at
// once need, and 128 at once need no less.
const callsAtOnce = 32

// place is one marker at one node. A server has one, a Cluster has one for each slot.
type place struct {
	*standing
	view view
}

// Enroll declares that the servers are new and hold no leases. It refuses unless every server has no
// marker and no lease. If every server votes already, and cfg gives another longest TTL, Enroll
// writes this TTL into all markers instead. After an error a change may be repeated. An enrolment
// that was not finished leaves nodes that vote and nodes that wait.
func Enroll(ctx context.Context, cs []redisstore.Client, cfg Settings) error {
	cfg.NodeTimeout = max(cfg.NodeTimeout, operatorTimeout)
	q := newQuorum(cs, cfg)
	defer func() { _ = q.close(ctx) }()
	places, err := q.places(ctx)
	if err != nil {
		return err
	}
	unmarked, changes := 0, 0
	errs := make([]error, len(q.nodes))
	servers := make(map[string]int)
	for _, p := range places {
		other, known := servers[p.view.id]
		servers[p.view.id] = p.node.index
		settings := q.settingsLike(p.view.text)
		err := q.reason(&p.view, settings)
		no, ok := errors.AsType[*notVoting](err)
		switch {
		case known && other != p.node.index:
			errs[p.node.index] = errTwice(other)
		case ok && no.state == store.NodeJoins && p.view.text == "":
			unmarked++
		case err != nil:
			errs[p.node.index] = err
		case settings != q.settings:
			changes++
		}
	}
	why := ""
	switch failed := slices.ContainsFunc(errs, isError); {
	case failed:
	case unmarked == len(places):
		return q.declareNew(ctx, places)
	case unmarked > 0:
		why = ": some of the servers are nodes already; a new server beside them needs no enrolment, because it votes by itself after its wait"
	case changes == 0:
		why = ": the servers are nodes already, and all vote"
	case !cfg.MaxTTLGiven:
		why = ": the servers are nodes already, with another longest TTL; give WithMaxTTL to change it"
	default:
		return q.markAll(ctx, places, func(p *place) string {
			m, _ := parseMarker(p.view.text)
			return m.since
		})
	}
	return q.newError("nothing was changed"+why, errs)
}

func isError(err error) bool { return err != nil }

// declareNew writes markers that vote at once, if no server holds a lease.
func (q *quorum) declareNew(ctx context.Context, places []*place) error {
	all := askEach(q, q.patience, func(n *node) ([]string, error) { return n.Keys(ctx, "*") }, nil)
	for i, keys := range all.values {
		if len(keys) > 0 {
			all.errs[i] = fmt.Errorf("the server is not new: it holds %d leases, such as that of %s", len(keys), keys[0])
		}
	}
	if slices.ContainsFunc(all.errs, isError) {
		return q.newError("nothing was changed", all.errs)
	}
	return q.markAll(ctx, places, func(*place) string { return alwaysSince })
}

// places returns all markers, with what the nodes show of them.
func (q *quorum) places(ctx context.Context) (all []*place, err error) {
	for _, n := range q.nodes {
		slots := 1
		if n.cluster {
			slots = redisstore.SlotCount
		}
		for slot := range slots {
			all = append(all, &place{standing: n.standing(uint16(slot))})
		}
	}
	return all, q.atEach(ctx, all, func(ctx context.Context, p *place) (err error) {
		p.view, err = p.node.look(ctx, p.marker)
		return err
	})
}

// markAll writes the settings of the quorum into all markers, with the time that the function since
// returns.
func (q *quorum) markAll(ctx context.Context, all []*place, since func(p *place) string) error {
	return q.atEach(ctx, all, func(ctx context.Context, p *place) error {
		return p.view.mark(ctx, p.standing, marker{p.view.id, since(p), q.settings})
	})
}

// atEach calls do for each place, and returns ErrQuorum with the first error of each node.
func (q *quorum) atEach(ctx context.Context, all []*place, do func(ctx context.Context, p *place) error) error {
	var mu sync.Mutex
	var working sync.WaitGroup
	first := make([]error, len(q.nodes))
	atOnce := make(chan struct{}, callsAtOnce*len(q.nodes))
	for _, p := range all {
		atOnce <- struct{}{}
		working.Go(func() {
			defer func() { <-atOnce }()
			ctx, cancel := context.WithTimeout(ctx, q.patience)
			defer cancel()
			if err := do(ctx, p); err != nil {
				mu.Lock()
				defer mu.Unlock()
				first[p.node.index] = cmp.Or(first[p.node.index], err)
			}
		})
	}
	working.Wait()
	failed := 0
	for _, err := range first {
		if err != nil {
			failed++
		}
	}
	if ctx.Err() != nil || failed == 0 {
		return ctx.Err()
	}
	return q.newError(fmt.Sprintf("%d of %d nodes failed", failed, len(q.nodes)), first)
}
