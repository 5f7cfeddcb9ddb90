package quorum

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// keyState is the state of a key as one node shows it, or as several nodes show it together.
type keyState struct {
	store.Info
	id     string // identifies the holder; "" when the node's vote is free
	block  int
	minted uint64 // the fence that this node has made for the holder
}

// readState reads the lease L of key at this node, in the form that a quorum writes, and returns
// its state.
func (n *node) readState(ctx context.Context, key string) (keyState, error) {
	info, text, err := n.Read(ctx, key)
	if err != nil || !info.Held {
		return keyState{Info: info}, err
	}
	h, minted, ours := parseVote(text)
	redisstore.Describe(&info, h, ours)
	if ours && !info.Kept {
		text = h.Token
	}
	if info.Kept {
		minted = h.Fence
	} else if ours {
		info.Left = n.quorum.holderLife(info.Left)
	}
	return keyState{info, text, h.Block, minted}, nil
}

// Inspect returns the holder of a quorum of the votes. When some nodes do not answer, it returns
// the holder that may have a quorum of the votes. A quorum of nodes that show the same decides, also
// if they show that the key is free, whatever their counters.
func (q *quorum) Inspect(ctx context.Context, key string) (store.Info, error) {
	type vote struct {
		id    string
		fence uint64
	}
	holder, _, err := q.inspect(ctx, key, func(all []answer[keyState]) bool {
		equal := make(map[vote]int)
		for _, a := range all {
			v := vote{a.value.id, a.value.Fence}
			if v.id == "" {
				v.fence = 0
			}
			if a.err == nil {
				equal[v]++
			}
			if equal[v] >= q.need {
				return true
			}
		}
		return false
	})
	return holder.Info, err
}

// inspect does the work of Inspect, and asks until the function decided returns true. It returns
// the state of the holder, and the state at each node.
func (q *quorum) inspect(ctx context.Context, key string, decided func([]answer[keyState]) bool) (keyState, []answer[keyState], error) {
	ctx = context.WithoutCancel(ctx)
	views := askEach(q, q.patience, func(n *node) (keyState, error) { return n.readState(ctx, key) }, decided)
	holder := ""
	votes := make(map[string]int)
	for _, v := range views {
		if id := v.value.id; id != "" {
			if votes[id]++; votes[id] > votes[holder] {
				holder = id
			}
		}
	}
	if err := tooFew(q, "answered", views); err != nil {
		return keyState{}, nil, err
	}
	if holder == "" || votes[holder]+len(views)-successes(views) < q.need {
		return keyState{}, views, nil // a token with a minority of the votes is no holder
	}
	return q.describe(views, holder), views, nil
}

// describe combines the states that the nodes show of one holder, and returns the combined state.
// It has the fence that most nodes show, and the time after which the holder's votes are no quorum
// any more.
func (q *quorum) describe(views []answer[keyState], holder string) (s keyState) {
	fences := make(map[uint64]int)
	var lefts []time.Duration
	for _, v := range views {
		if v.err != nil || v.value.id != holder {
			continue
		}
		lefts = append(lefts, v.value.Left)
		if fences[v.value.Fence]++; !s.Held || fences[v.value.Fence] > fences[s.Fence] {
			s = v.value
		}
	}
	s.Left = runsOut(lefts, len(lefts)-q.need+1)
	return s
}

// Revoke takes the votes back from the holder of a fence, on all nodes, and leaves a note with the
// reason. A node that has shown no vote of the holder takes one back as well: its vote may have
// come since, and could keep the lease alive together with a vote that is not taken back. The token
// of a holder has one lease, so Revoke does not affect a lease that begins meanwhile. Keys that are
// kept for KeepFor all have one token, so there each node takes back only the vote that it has
// shown.
func (q *quorum) Revoke(ctx context.Context, key string, fence uint64, reason string) (store.Grant, error) {
	ctx = context.WithoutCancel(ctx)
	all := func([]answer[keyState]) bool { return false } // the votes of a kept key are taken back only where they were seen
	holder, views, err := q.inspect(ctx, key, all)
	switch {
	case err != nil:
		return store.Grant{}, err
	case holder.Foreign:
		return store.Grant{}, &store.Refusal{Err: fmt.Errorf("%w: another library or program holds the key and has no fence; delete the key by hand if you must end that lock", store.ErrUnsupported)}
	case !holder.Held || fence < holder.Fence || fence-holder.Fence >= uint64(max(holder.block, 1)):
		return store.Grant{State: store.NotOurs}, nil
	}
	c := store.Claim{Key: key, Owner: holder.id, TTL: holder.Left, TombstoneTTL: max(holder.Left, time.Minute)}
	if holder.Kept {
		c.Owner, c.TombstoneTTL = redisstore.KeptToken, 0 // a kept key has no holder that could read a note
	}
	t := releaseTally{quorum: q}
	// The votes that the holder may still have must be no quorum any more.
	over := func() bool { return t.released+t.notHeld > len(q.nodes)-q.need }
	open := gather(q, q.patience, q.allNodes(), func(n *node, onAnswer func(store.Grant, error) bool) {
		args := releaseArgs{tombstone: "revoked:" + reason}
		if holder.Kept {
			args.vote = noVote
			if v := views[n.index]; v.err == nil && v.value.id == holder.id && v.value.minted != 0 {
				args.vote = v.value.minted
			}
		}
		n.release(ctx, c, args, link.Release, func(g store.Grant, err error) { onAnswer(g, err) })
	}, func() bool { return t.released > 0 && over() }, func(i int, g store.Grant, err error) { t.record(q.nodes[i], g, err) })
	switch {
	case t.released > 0 && over():
		return store.Grant{State: store.Released}, nil
	case over():
		return store.Grant{State: store.NotOurs}, nil
	}
	return t.result(open)
}

// noVote is a vote that no node has ever given. To end the time for which a key is kept, Revoke
// sends it to the nodes that have shown no vote.
const noVote = 1

// RaiseFence raises the counters at a quorum of nodes. Every later quorum includes at least one of
// these nodes. But a node that comes back without data has lost its counter, and begins at its
// clock. So a fence above the clocks may be forgotten when such nodes vote again.
func (q *quorum) RaiseFence(ctx context.Context, key string, atLeast uint64) error {
	ctx = context.WithoutCancel(ctx)
	all := askEach(q, q.patience, func(n *node) (struct{}, error) { return struct{}{}, n.RaiseFence(ctx, key, atLeast) },
		func(all []answer[struct{}]) bool { return successes(all) >= q.need })
	return tooFew(q, "raised it", all)
}

// Keys waits until more than half of the nodes have answered, and returns the keys that any of
// these nodes shows. All locks are among these keys: a lock has votes on more than half of the
// nodes, so at least one of the answers contains it. A key with fewer votes may also be among them;
// Inspect shows that it is no lock. A scan may take longer than the time limit of a step, so only
// ctx limits the wait.
func (q *quorum) Keys(ctx context.Context, pattern string) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all := askEach(q, math.MaxInt64, func(n *node) ([]string, error) { return n.Keys(ctx, pattern) },
		func(all []answer[[]string]) bool { return successes(all) >= q.need })
	if err := cmp.Or(ctx.Err(), tooFew(q, "answered", all)); err != nil {
		return nil, err
	}
	found := make(map[string]struct{})
	for _, a := range all {
		for _, key := range a.value {
			found[key] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// Queue returns no waiters: there is no queue on a quorum.
func (*quorum) Queue(context.Context, string) ([]store.Waiter, error) { return nil, nil }

// CheckServer checks every node.
func (q *quorum) CheckServer(ctx context.Context) (all []store.Warning) {
	for i, a := range askEach(q, q.patience, func(n *node) ([]store.Warning, error) { return n.CheckServer(ctx), nil }, nil) {
		for _, w := range a.value {
			w.Text = "node " + strconv.Itoa(i) + ": " + w.Text
			all = append(all, w)
		}
	}
	return all
}

// Explain returns nil if a quorum of nodes answers and votes. Otherwise it returns an error that
// names each node that has not answered, or has answered with an error.
func (q *quorum) Explain(string) error {
	var errs []error
	for _, n := range q.nodes {
		if n.calls.Idle() != nil {
			errs = append(errs, n.error(errSilent))
		} else if err := n.last.Load(); err != nil {
			errs = append(errs, n.error(*err))
		}
	}
	if answer := len(q.nodes) - len(errs); answer < q.need {
		return q.errTooFew("answer and vote", answer, errs)
	}
	return nil
}
