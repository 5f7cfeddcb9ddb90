package quorum

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// Keys waits until more than half of the nodes have answered, and returns the keys that any of
// these nodes shows. All locks are among these keys: a lock has votes on more than half of the
// nodes, so at least one of the answers contains it. A key with fewer votes may also be among them;
// Inspect shows that it is no lock. A scan may take longer than the time limit of a step, so only
// ctx limits the wait.
func (q *quorum) Keys(ctx context.Context, pattern string) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer[[]string], len(q.nodes))
	for i, n := range q.nodes {
		n.links.Pool.Do(func() {
			keys, err := n.Keys(ctx, pattern)
			answers <- answer[[]string]{i, keys, err}
		})
	}
	found := make(map[string]struct{})
	var errs []error
	for answered := 0; answered < q.need; {
		var a answer[[]string]
		select {
		case a = <-answers:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if a.err == nil {
			answered++
			for _, key := range a.value {
				found[key] = struct{}{}
			}
		} else if errs = append(errs, q.nodes[a.node].error(a.err)); len(errs) > len(q.nodes)-q.need {
			return nil, q.errTooFew("answered", answered, errs)
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// Queue combines the queues of the nodes. The waiter that has waited longest comes first, although
// a quorum does not guarantee that waiters get the key in this order.
func (q *quorum) Queue(ctx context.Context, key string) ([]store.Waiter, error) {
	type place struct {
		entry redisstore.Entry
		// late is true if the ticket is later than the server's clock. Then the node has rewritten
		// the ticket when it notified the waiter, so the ticket does not show when the wait began.
		late bool
	}
	queues, err := askQuorum(q, func(n *node) ([]place, error) {
		at, entries, err := n.Entries(context.WithoutCancel(ctx), key)
		places := make([]place, len(entries))
		for i, e := range entries {
			places[i] = place{e, time.UnixMicro(e.Ticket).After(at)}
		}
		return places, err
	}, agree(q, func(places []place) (string, bool) { // a quorum that shows the same waiters decides
		tokens, listening := make([]string, len(places)), true
		for i, p := range places {
			tokens[i] = p.entry.Token
			listening = listening && p.entry.Listening // another node may know that the waiter is not gone
		}
		slices.Sort(tokens)
		return strings.Join(tokens, " "), listening
	}))
	if err != nil {
		return nil, err
	}
	waiters := make(map[string]place)
	for _, queue := range queues {
		if queue == nil {
			continue
		}
		for _, p := range *queue {
			known, ok := waiters[p.entry.Token]
			listening := known.entry.Listening || p.entry.Listening
			if !ok || p.entry.Ticket < known.entry.Ticket {
				known = p
			}
			known.entry.Listening = listening
			waiters[p.entry.Token] = known
		}
	}
	var line redisstore.Line
	for _, p := range slices.SortedFunc(maps.Values(waiters), func(a, b place) int { return cmp.Compare(a.entry.Ticket, b.entry.Ticket) }) {
		if p.late {
			p.entry.Ticket = 0
		}
		line.Add(p.entry, store.Waiter{})
	}
	return line.Waiters, nil
}
