package quorum

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// operatorTimeout is the shortest time-out of an operator's call at a node. It is longer than the
// usual time-out, because an operator's call needs the answers of all nodes. It is the longest time
// for which a link waits for an answer.
const operatorTimeout = 5 * time.Second

// Enroll declares that the servers are new and hold no leases. It refuses unless every server has no
// marker and no lease. If every server votes already, and cfg gives another longest TTL, Enroll
// writes this TTL into all markers instead. After an error a change may be repeated. An enrolment
// that was not finished leaves nodes that vote and nodes that wait.
func Enroll(ctx context.Context, cs []redisstore.Client, cfg Settings) error {
	cfg.NodeTimeout = max(cfg.NodeTimeout, operatorTimeout)
	q := newQuorum(cs, cfg)
	defer func() { _ = q.close(ctx) }()
	views, err := atEach(ctx, q, func(n *node) (view, error) { return n.look(ctx) })
	if err != nil {
		return err
	}
	unmarked, changes := 0, 0
	errs := make([]error, len(q.nodes))
	servers := make(map[string]int)
	for i := range views {
		v := &views[i]
		other, known := servers[v.id]
		servers[v.id] = i
		settings := q.settingsLike(v.text)
		err := q.reason(v, settings)
		no, ok := errors.AsType[*notVoting](err)
		switch {
		case known:
			errs[i] = errTwice(other)
		case ok && no.state == store.NodeJoins && v.text == "":
			unmarked++
		case err != nil:
			errs[i] = err
		case settings != q.settings:
			changes++
		}
	}
	why := ""
	switch failed := slices.ContainsFunc(errs, isError); {
	case failed:
	case unmarked == len(views):
		return q.declareNew(ctx, views)
	case unmarked > 0:
		why = ": some of the servers are nodes already; a new server beside them needs no enrolment, because it votes by itself after its wait"
	case changes == 0:
		why = ": the servers are nodes already, and all vote"
	case !cfg.MaxTTLGiven:
		why = ": the servers are nodes already, with another longest TTL; give WithMaxTTL to change it"
	default:
		return q.markAll(ctx, views, func(v *view) string {
			m, _ := parseMarker(v.text)
			return m.since
		})
	}
	return q.newError("nothing was changed"+why, errs)
}

func isError(err error) bool { return err != nil }

// declareNew writes markers that vote at once, if no server holds a lease.
func (q *quorum) declareNew(ctx context.Context, views []view) error {
	all := askEach(q, q.patience, func(n *node) ([]string, error) { return n.Keys(ctx, "*") }, nil)
	for i, keys := range all.values {
		if len(keys) > 0 {
			all.errs[i] = fmt.Errorf("the server is not new: it holds %d leases, such as that of %s", len(keys), keys[0])
		}
	}
	if slices.ContainsFunc(all.errs, isError) {
		return q.newError("nothing was changed", all.errs)
	}
	return q.markAll(ctx, views, func(*view) string { return alwaysSince })
}

// markAll writes the settings of the quorum into all markers, with the time that the function since
// returns.
func (q *quorum) markAll(ctx context.Context, views []view, since func(v *view) string) error {
	_, err := atEach(ctx, q, func(n *node) (struct{}, error) {
		v := &views[n.index]
		return struct{}{}, v.mark(ctx, n, marker{v.id, since(v), q.settings})
	})
	return err
}

// atEach calls do for each node, and returns the results. Each node must answer without an error.
func atEach[T any](ctx context.Context, q *quorum, do func(n *node) (T, error)) ([]T, error) {
	all := askEach(q, q.patience, do, nil)
	if failed := len(q.nodes) - all.received().count(); ctx.Err() == nil && failed > 0 {
		return nil, q.newError(fmt.Sprintf("%d of %d nodes failed", failed, len(q.nodes)), all.errs)
	}
	return all.values, ctx.Err()
}
