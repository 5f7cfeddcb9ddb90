package quorum

import (
	"context"
	"fmt"
	"strconv"
	"time"

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

// askAll asks all nodes, and returns the answers by node. A node that does not answer in time has
// errSilent.
func askAll[T any](q *quorum, ask func(n *node) (T, error)) []answer[T] {
	return askUntil(q, ask, func([]answer[T]) bool { return false })
}

// askUntil does the work of askAll. It also ends when the answers so far decide the question. Then
// a node that has not answered has errSilent.
func askUntil[T any](q *quorum, ask func(n *node) (T, error), decided func([]answer[T]) bool) []answer[T] {
	all := make([]answer[T], len(q.nodes))
	for i := range all {
		all[i] = answer[T]{node: i, err: errSilent}
	}
	f := fanOut(q, q.allNodes(), nil, async(ask))
	defer f.stop()
	for n, a := range f.remaining {
		if all[n.index] = a; decided(all) {
			break
		}
	}
	return all
}

// agree returns a function for askUntil: a question is decided when a quorum of the answers have
// one summary. The result ok of summary is false for an answer that decides nothing.
func agree[T any, S comparable](q *quorum, summary func(T) (s S, ok bool)) func([]answer[T]) bool {
	return func(all []answer[T]) bool {
		equal := make(map[S]int)
		for _, a := range all {
			if a.err != nil {
				continue
			}
			if s, ok := summary(a.value); ok {
				if equal[s]++; equal[s] >= q.need {
					return true
				}
			}
		}
		return false
	}
}

// askQuorum asks all nodes until the function decided returns true. It returns the values of the
// answers by node, with nil for a node that gave none. It returns ErrQuorum if less than a quorum
// of the nodes answers.
func askQuorum[T any](q *quorum, ask func(n *node) (T, error), decided func([]answer[T]) bool) (values []*T, err error) {
	values = make([]*T, len(q.nodes))
	answered := 0
	var errs []error
	for i, a := range askUntil(q, ask, decided) {
		if a.err != nil {
			errs = append(errs, q.nodes[i].error(a.err))
			continue
		}
		values[i] = &a.value
		answered++
	}
	if answered < q.need {
		return nil, q.errTooFew("answered", answered, errs)
	}
	return values, nil
}

// Inspect returns the holder of a quorum of the votes. When some nodes do not answer, it returns
// the holder that may have a quorum of the votes.
func (q *quorum) Inspect(ctx context.Context, key string) (store.Info, error) {
	type vote struct {
		id    string
		fence uint64
	}
	holder, _, err := q.inspect(context.WithoutCancel(ctx), key, agree(q, func(s keyState) (vote, bool) {
		if s.id == "" {
			return vote{}, true // a quorum that shows that the key is free decides, whatever its counters
		}
		return vote{s.id, s.Fence}, true
	}))
	return holder.Info, err
}

// inspect does the work of Inspect, and asks until the function decided returns true. It returns
// the state of the holder, and the state at each node, or nil for a node that did not answer.
func (q *quorum) inspect(ctx context.Context, key string, decided func([]answer[keyState]) bool) (keyState, []*keyState, error) {
	views, err := askQuorum(q, func(n *node) (keyState, error) { return n.readState(ctx, key) }, decided)
	if err != nil {
		return keyState{}, nil, err
	}
	holder, most, answers, waiters := "", 0, 0, 0
	votes := make(map[string]int)
	for _, v := range views {
		if v == nil {
			continue
		}
		answers++
		waiters = max(waiters, v.Waiters)
		if votes[v.id]++; v.id != "" && votes[v.id] > most {
			holder, most = v.id, votes[v.id]
		}
	}
	if most == 0 || most+len(q.nodes)-answers < q.need {
		return keyState{Info: store.Info{Waiters: waiters}}, views, nil // a token with a minority of the votes is no holder
	}
	s := q.describe(views, holder)
	s.Waiters = waiters
	return s, views, nil
}

// describe combines the states that the nodes show of one holder, and returns the combined state.
// It has the fence that most nodes show, and the time after which the holder's votes are no quorum
// any more.
func (q *quorum) describe(views []*keyState, holder string) (s keyState) {
	fences := make(map[uint64]int)
	var lefts []time.Duration
	for _, v := range views {
		if v == nil || v.id != holder {
			continue
		}
		lefts = append(lefts, v.Left)
		if fences[v.Fence]++; !s.Held || fences[v.Fence] > fences[s.Fence] {
			s = *v
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
	f := fanOut(q, q.allNodes(), nil, func(n *node, onAnswer func(store.Grant, error)) {
		args := releaseArgs{tombstone: "revoked:" + reason}
		if holder.Kept {
			args.vote = noVote
			if v := views[n.index]; v != nil && v.id == holder.id && v.minted != 0 {
				args.vote = v.minted
			}
		}
		n.release(ctx, c, args, onAnswer)
	})
	defer f.stop()
	t := releaseTally{quorum: q}
	for n, a := range f.remaining {
		// Stop when the votes that the holder may still have are no quorum any more.
		if t.record(n, a.value, a.err); t.released+t.notHeld > len(q.nodes)-q.need && t.released > 0 {
			return store.Grant{State: store.Released}, nil
		}
	}
	if t.notHeld > len(q.nodes)-q.need {
		return store.Grant{State: store.NotOurs}, nil
	}
	return t.result(f.silentErrors)
}

// noVote is a vote that no node has ever given. To end the time for which a key is kept, Revoke
// sends it to the nodes that have shown no vote.
const noVote = 1

// RaiseFence raises the counters at a quorum of nodes. Every later quorum includes at least one of
// these nodes. But a node that comes back without data has lost its counter, and begins at its
// clock. So a fence above the clocks may be forgotten when such nodes vote again.
func (q *quorum) RaiseFence(ctx context.Context, key string, atLeast uint64) error {
	ctx = context.WithoutCancel(ctx)
	f := fanOut(q, q.allNodes(), nil, async(func(n *node) (struct{}, error) { return struct{}{}, n.RaiseFence(ctx, key, atLeast) }))
	defer f.stop()
	raised, refused := 0, 0
	var errs []error
	for n, a := range f.remaining {
		if a.err == nil {
			if raised++; raised == q.need {
				return nil
			}
			continue
		}
		errs = append(errs, n.error(a.err))
		if isRefusal(a.err) {
			refused++
		}
	}
	err := q.errTooFew("raised it", raised, append(errs, f.silentErrors()...))
	if refused == len(q.nodes) {
		return &store.Refusal{Err: err}
	}
	return err
}

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
// names each node that has not answered, has answered with an error, or is known not to vote. With
// a Redis Cluster among the nodes, the reasons of nodes that do not vote are missing.
func (q *quorum) Explain(string) error {
	var errs []error
	for _, n := range q.nodes {
		if n.underWay.Load() > 0 {
			errs = append(errs, n.error(errSilent))
		} else if err := n.last.Load(); err != nil {
			errs = append(errs, n.error(*err))
		} else if err := q.whole.absence(n.index); err != nil {
			errs = append(errs, n.error(err))
		}
	}
	if answer := len(q.nodes) - len(errs); answer < q.need {
		return &quorumError{
			summary:    fmt.Sprintf("%d of %d nodes answer and vote, %d must agree", answer, len(q.nodes), q.need),
			nodes:      errs,
			retryAfter: q.whole.timeToQuorum(),
		}
	}
	return nil
}
