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
	"github.com/latchkit/latchkit/internal/store"
)

// Enroll declares that the servers are new and hold no leases. If some of the servers are in use,
// Enroll treats them as a Locker does, and returns the error that a Locker would return.
func Enroll(ctx context.Context, cs []redisstore.Client, cfg Settings) error {
	_, err := tendOnce(ctx, cs, cfg, wish{enroll: true})
	return err
}

// Replace gives the free seat of the set to the one server that has no seat. It returns how long
// that server will not vote. When that time is over, any process that uses the same list lets the
// server vote.
func Replace(ctx context.Context, cs []redisstore.Client, cfg Settings) (time.Duration, error) {
	r, err := tendOnce(ctx, cs, cfg, wish{replace: true})
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
			left = max(left, m.remaining)
		default:
			return 0, err
		}
	}
	if vote < r.quorum.need {
		return 0, err
	}
	return left, nil
}

// operatorTimeout is the shortest time-out of an operator's call at a node. It is longer than the
// usual time-out, because an operator's call needs the answers of all nodes.
const operatorTimeout = 2 * time.Second

// slotsAtOnce is how many slots of a Redis Cluster an operator's call tends at the same time. The
// calls of 32 slots share their way to a server: 16 384 slots are enrolled in half of the time that
// 8 at once need, and 128 at once need no less.
const slotsAtOnce = 32

// tendOnce makes the changes of w that are due at the nodes of the clients cs, for an operator's
// call. If not all nodes vote, it returns an error and the roster that shows which nodes do not
// vote.
func tendOnce(ctx context.Context, cs []redisstore.Client, cfg Settings, w wish) (*roster, error) {
	cfg.NodeTimeout = max(cfg.NodeTimeout, operatorTimeout)
	q := newQuorum(cs, cfg)
	q.asks.Store(cfg.MaxTTLGiven)
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
	for range slotsAtOnce {
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
				r.stop()
			}
		})
	}
	all.Wait()
	if f := failed.Load(); f != nil {
		return f.roster, f.err
	}
	return nil, nil
}

// settle looks at the nodes and makes the changes of w that are due, at most settleTries times,
// until no node is slow. It returns nil when all nodes vote.
func (r *roster) settle(ctx context.Context, w wish) error {
	var errs []error
	for range settleTries {
		for _, n := range r.quorum.nodes {
			n.failed.Store(0) // this call waits for each node, even for a node that has failed
		}
		r.tend(ctx, w)
		if ctx.Err() != nil {
			return &quorumError{summary: "it is not known which nodes vote", nodes: []error{ctx.Err()}}
		}
		var mayBeSlow bool
		if errs, mayBeSlow = r.absences(); !mayBeSlow {
			break
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return &quorumError{summary: fmt.Sprintf("%d of %d nodes do not vote", len(errs), len(r.quorum.nodes)), nodes: errs}
}

// settleTries is how many times an operator's call asks the nodes when some of them answer too
// slowly.
const settleTries = 3

// absences returns an error for each node that does not vote. The result mayBeSlow reports whether
// one of these nodes may only be slow to answer.
func (r *roster) absences() (errs []error, mayBeSlow bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, n := range r.quorum.nodes {
		if m := &r.members[i]; m.state != store.NodeVotes {
			errs = append(errs, n.error(m.reason))
			mayBeSlow = mayBeSlow || errors.Is(m.reason, errSilent) || errors.Is(m.reason, link.ErrNoAnswer)
		}
	}
	return errs, mayBeSlow
}
