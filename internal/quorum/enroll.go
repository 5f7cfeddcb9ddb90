package quorum

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker/store"
)

// Enroll declares that the servers are new and hold no leases. If some of the servers are in use,
// Enroll treats them as a Locker does, and returns the error that a Locker would return.
func Enroll(ctx context.Context, cs []redisstore.Client, cfg Settings) error {
	_, err := once(ctx, cs, cfg, wish{enroll: true})
	return err
}

// Replace gives the free seat of the set to the one server that has no seat. It returns how long
// that server will not vote. When that time is over, any process that uses the same list lets the
// server vote.
func Replace(ctx context.Context, cs []redisstore.Client, cfg Settings) (time.Duration, error) {
	r, err := once(ctx, cs, cfg, wish{replace: true})
	if r == nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	left, vote := time.Duration(0), 0
	for i := range r.members {
		switch m := &r.members[i]; m.state {
		case store.NodeVotes:
			vote++
		case store.NodeJoins:
			left = max(left, m.left)
		default:
			return 0, err
		}
	}
	if vote < r.quorum.need {
		return 0, err
	}
	return left, nil
}

// patient is the shortest time-out of an operator's call at a node. It is longer than usual,
// because such a call needs the answers of all nodes.
const patient = 2 * time.Second

// once makes the changes that are due at all nodes of a list, for an operator's call. If not all
// nodes vote, it returns an error and the roster. The roster shows which nodes do not vote.
func once(ctx context.Context, cs []redisstore.Client, cfg Settings, w wish) (*roster, error) {
	cfg.NodeTimeout = max(cfg.NodeTimeout, patient)
	q := newQuorum(cs, cfg)
	defer func() { _ = q.Close(ctx) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !q.slotted {
		return q.whole, q.whole.settle(ctx, w)
	}
	type result struct {
		*roster
		err error
	}
	var all sync.WaitGroup
	var failed atomic.Pointer[result]
	next := atomic.Int32{}
	for range redisstore.MostAtOnce {
		all.Go(func() {
			for failed.Load() == nil {
				i := next.Add(1) - 1
				if i >= redisstore.SlotCount {
					return
				}
				r := newRoster(q, ":"+redisstore.TagOfSlot(uint16(i)))
				if err := r.settle(ctx, w); err != nil {
					failed.Store(&result{r, err})
				}
				r.end()
			}
		})
	}
	all.Wait()
	if f := failed.Load(); f != nil {
		return f.roster, f.err
	}
	return nil, nil
}

// settle calls tend until no node is slow, at most settleTries times. It returns nil when all nodes
// vote.
func (r *roster) settle(ctx context.Context, w wish) error {
	var errs []error
	for range settleTries {
		for _, n := range r.quorum.nodes {
			n.failed.Store(0) // this call waits for each node, even for a node that has failed
		}
		r.tend(ctx, w)
		if ctx.Err() != nil {
			return &quorumError{what: "it is not known which nodes vote", nodes: []error{ctx.Err()}}
		}
		var silent bool
		if errs, silent = r.out(); !silent {
			break
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return &quorumError{what: fmt.Sprintf("%d of %d nodes do not vote", len(errs), len(r.quorum.nodes)), nodes: errs}
}

// settleTries is how many times an operator's call asks the nodes when some of them answer too
// slowly.
const settleTries = 3

// out returns an error for each node that does not vote. The result silent reports whether one of
// these nodes may only be slow.
func (r *roster) out() (errs []error, silent bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, n := range r.quorum.nodes {
		if m := &r.members[i]; m.state != store.NodeVotes {
			errs = append(errs, n.error(m.why))
			silent = silent || errors.Is(m.why, errSilent) || errors.Is(m.why, link.ErrNoAnswer)
		}
	}
	return errs, silent
}
