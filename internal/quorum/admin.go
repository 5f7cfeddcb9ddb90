package quorum

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// answer is the answer of one node.
type answer[T any] struct {
	value T
	err   error
}

// askUntil asks all nodes until the answers so far decide the question, and returns the answers by
// node. A node that has not answered has errSilent.
func askUntil[T any](q *quorum, ask func(n *node) (T, error), decided func([]answer[T]) bool) []answer[T] {
	all := make([]answer[T], len(q.nodes))
	for i := range all {
		all[i].err = errSilent
	}
	gatherAll(q, q.allNodes(), async(ask), func() bool { return decided(all) }, func(n *node, v T, err error) {
		all[n.index] = answer[T]{v, err}
	})
	return all
}

// askAll asks all nodes, and returns the answers by node. It waits for unresponsive nodes too.
func askAll[T any](q *quorum, ask func(n *node) (T, error)) []answer[T] {
	all, ended := make([]answer[T], len(q.nodes)), make(chan struct{})
	g := &gather[T]{quorum: q, patient: true, decided: func() bool { return false }, end: func() { close(ended) }}
	g.take = func(n *node, v T, err error) { all[n.index] = answer[T]{v, err} }
	g.start(q.allNodes(), async(ask))
	<-ended
	for n := range q.eachNode(g.open) {
		all[n.index].err = errSilent
	}
	return all
}

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
	holder, _, err := q.inspect(context.WithoutCancel(ctx), key, func(all []answer[keyState]) bool {
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
	views := askUntil(q, func(n *node) (keyState, error) { return n.readState(ctx, key) }, decided)
	holder, most, answers := "", 0, 0
	votes := make(map[string]int)
	var errs []error
	for i, v := range views {
		if v.err != nil {
			errs = append(errs, q.nodes[i].error(v.err))
			continue
		}
		answers++
		if votes[v.value.id]++; v.value.id != "" && votes[v.value.id] > most {
			holder, most = v.value.id, votes[v.value.id]
		}
	}
	if answers < q.need {
		return keyState{}, nil, q.errTooFew("answered", answers, errs)
	}
	if most == 0 || most+len(q.nodes)-answers < q.need {
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
	open := gatherAll(q, q.allNodes(), func(n *node, onAnswer func(store.Grant, error)) {
		args := releaseArgs{tombstone: "revoked:" + reason}
		if holder.Kept {
			args.vote = noVote
			if v := views[n.index]; v.err == nil && v.value.id == holder.id && v.value.minted != 0 {
				args.vote = v.value.minted
			}
		}
		n.release(ctx, c, args, onAnswer)
		// The votes that the holder may still have must be no quorum any more.
	}, func() bool { return t.released > 0 && t.released+t.notHeld > len(q.nodes)-q.need }, t.record)
	switch {
	case t.released > 0 && t.released+t.notHeld > len(q.nodes)-q.need:
		return store.Grant{State: store.Released}, nil
	case t.notHeld > len(q.nodes)-q.need:
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
	raised, refused := 0, 0
	var errs []error
	open := gatherAll(q, q.allNodes(), async(func(n *node) (struct{}, error) {
		return struct{}{}, n.RaiseFence(ctx, key, atLeast)
	}), func() bool { return raised >= q.need }, func(n *node, _ struct{}, err error) {
		if err == nil {
			raised++
			return
		}
		if errs = append(errs, n.error(err)); isRefusal(err) {
			refused++
		}
	})
	if raised >= q.need {
		return nil
	}
	for n := range q.eachNode(open) {
		errs = append(errs, n.error(errSilent))
	}
	err := q.errTooFew("raised it", raised, errs)
	if refused == len(q.nodes) {
		return &store.Refusal{Err: err}
	}
	return err
}

// Keys waits until more than half of the nodes have answered, and returns the keys that any of
// these nodes shows. All locks are among these keys: a lock has votes on more than half of the
// nodes, so at least one of the answers contains it. A key with fewer votes may also be among them;
// Inspect shows that it is no lock. A scan may take longer than the time limit of a step, so only
// ctx limits the wait.
func (q *quorum) Keys(ctx context.Context, pattern string) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer[[]string], len(q.nodes))
	for _, n := range q.nodes {
		n.links.Pool.Do(func() {
			keys, err := n.Keys(ctx, pattern)
			if err != nil {
				err = n.error(err)
			}
			answers <- answer[[]string]{keys, err}
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
		} else if errs = append(errs, a.err); len(errs) > len(q.nodes)-q.need {
			return nil, q.errTooFew("answered", answered, errs)
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// Queue returns no waiters: there is no queue on a quorum.
func (*quorum) Queue(context.Context, string) ([]store.Waiter, error) { return nil, nil }

// CheckServer checks every node.
func (q *quorum) CheckServer(ctx context.Context) (all []store.Warning) {
	for i, a := range askAll(q, func(n *node) ([]store.Warning, error) { return n.CheckServer(ctx), nil }) {
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
		if n.underWay.Load() > 0 {
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
