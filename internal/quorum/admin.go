package quorum

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// keyState is the state of a key as one node shows it, or as several nodes show it together.
type keyState struct {
	store.Info
	id    string // identifies the holder; "" when the node's vote is free
	block int
}

// readState reads the lease L of key at this node, in the form that a quorum writes, and returns
// its state.
func (n *node) readState(ctx context.Context, key string) (keyState, error) {
	info, text, err := n.Read(ctx, key)
	if err != nil || !info.Held {
		return keyState{}, err
	}
	h, _, ours := parseVote(text)
	redisstore.Describe(&info, h, ours)
	if ours && !info.Kept {
		text = h.Token
		info.Left = n.quorum.holderLife(info.Left)
	}
	return keyState{info, text, h.Block}, nil
}

// Inspect returns the holder of a quorum of the votes. When some nodes do not answer, it returns
// the holder that may have a quorum of the votes.
func (q *quorum) Inspect(ctx context.Context, key string) (store.Info, error) {
	s, err := q.inspect(ctx, key)
	return s.Info, err
}

// inspect does the work of Inspect. A quorum of nodes that show the same decides. The result has the
// fence that most nodes show of the holder, and the time after which the holder's votes are no
// quorum any more.
func (q *quorum) inspect(ctx context.Context, key string) (s keyState, err error) {
	ctx = context.WithoutCancel(ctx)
	type vote struct {
		id    string
		fence uint64
	}
	views := askEach(q, q.patience, func(n *node) (keyState, error) { return n.readState(ctx, key) }, func(all answers[keyState]) bool {
		_, same := most(q, all.received(), func(i int) vote { return vote{all.values[i].id, all.values[i].Fence} })
		return same.count() >= q.need
	})
	if err := views.tooFew("answered"); err != nil {
		return s, err
	}
	held := views.received()
	silent := len(q.nodes) - held.count()
	for n := range q.eachNode(held) {
		if views.values[n.index].id == "" {
			held = held.minus(n.index)
		}
	}
	_, voters := most(q, held, func(i int) string { return views.values[i].id })
	if voters.count()+silent < q.need {
		return s, nil // a token with a minority of the votes is no holder
	}
	_, same := most(q, voters, func(i int) uint64 { return views.values[i].Fence })
	s = views.values[same.first()]
	var lefts []time.Duration
	for n := range q.eachNode(voters) {
		lefts = append(lefts, views.values[n.index].Left)
	}
	s.Left = runsOut(lefts, len(lefts)-q.need+1)
	return s, nil
}

// Revoke takes the votes back from the holder of a fence, on all nodes, and leaves a note with the
// reason. A node that has shown no vote of the holder takes one back as well: its vote may have
// come since, and could keep the lease alive together with a vote that is not taken back. The token
// of a holder has one lease, so Revoke does not affect a lease that begins meanwhile. Keys that are
// kept for KeepFor all have one token, so there each node takes back only the vote with this fence.
func (q *quorum) Revoke(ctx context.Context, key string, fence uint64, reason string) (store.Grant, error) {
	holder, err := q.inspect(ctx, key)
	switch {
	case err != nil:
		return store.Grant{}, err
	case holder.Foreign:
		return store.Grant{}, &store.Refusal{Err: fmt.Errorf("%w: another library or program holds the key and has no fence; delete the key by hand if you must end that lock", store.ErrUnsupported)}
	case !holder.Held || fence < holder.Fence || fence-holder.Fence >= uint64(max(holder.block, 1)):
		return store.Grant{State: store.NotOurs}, nil
	}
	c := store.Claim{Key: key, Owner: holder.id, TTL: holder.Left, TombstoneTTL: max(holder.Left, time.Minute)}
	args := releaseArgs{tombstone: "revoked:" + reason}
	if holder.Kept { // a kept key has no holder that could read a note
		c.Owner, c.TombstoneTTL, args.vote = redisstore.KeptToken, 0, holder.Fence
	}
	t := releaseTally{quorum: q}
	// The votes that the holder may still have must be no quorum any more.
	over := func() bool { return t.released+t.notHeld > len(q.nodes)-q.need }
	open := gatherAll(q, q.patience, func(n *node, onAnswer func(store.Grant, error)) {
		n.release(context.WithoutCancel(ctx), c, args, link.Release, onAnswer)
	}, func() bool { return t.released > 0 && over() }, t.record)
	switch {
	case t.released > 0 && over():
		return store.Grant{State: store.Released}, nil
	case over():
		return store.Grant{State: store.NotOurs}, nil
	}
	return t.result(open)
}

// RaiseFence raises the counters at a quorum of nodes. Every later quorum includes at least one of
// these nodes. But a node that comes back without data has lost its counter, and begins at its
// clock. So a fence above the clocks may be forgotten when such nodes vote again.
func (q *quorum) RaiseFence(ctx context.Context, key string, atLeast uint64) error {
	ctx = context.WithoutCancel(ctx)
	all := askEach(q, q.patience, func(n *node) (struct{}, error) { return struct{}{}, n.RaiseFence(ctx, key, atLeast) },
		func(all answers[struct{}]) bool { return all.received().count() >= q.need })
	return all.tooFew("raised it")
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
		func(all answers[[]string]) bool { return all.received().count() >= q.need })
	if err := cmp.Or(ctx.Err(), all.tooFew("answered")); err != nil {
		return nil, err
	}
	keys := slices.Concat(all.values...)
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

// Queue returns no waiters: there is no queue on a quorum.
func (*quorum) Queue(context.Context, string) ([]store.Waiter, error) { return nil, nil }
