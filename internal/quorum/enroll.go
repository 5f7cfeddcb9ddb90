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

// Enroll declares that the servers are new and hold no leases. Servers of which some are in use are
// treated as a Locker treats them, and the error is that of the Locker.
func Enroll(ctx context.Context, cs []redisstore.Client, cfg Settings) error {
	_, err := once(ctx, cs, cfg, wish{enroll: true})
	return err
}

// Replace gives the seat that none of the servers has to the one server that has none. It returns
// how long that one does not vote; whichever process has the same list ends that.
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

// patient is how long an operator waits for a node at least: each of them counts.
const patient = 2 * time.Second

// once tends all nodes of a list, for an operator, and says whether all of them vote. The roster is
// the one that took longest.
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

// settle tends the nodes, and is nil when all of them vote.
func (r *roster) settle(ctx context.Context, w wish) error {
	var errs []error
	for range settleTries {
		for _, n := range r.quorum.nodes {
			n.failed.Store(0) // each of them is waited for
		}
		r.tend(ctx, w)
		if ctx.Err() != nil {
			return &quorumError{what: "it is not known how the nodes stand", nodes: []error{ctx.Err()}}
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

// settleTries is how often an operator's call asks nodes that are too slow to answer.
const settleTries = 3

// out is why nodes do not vote. silent says whether one of them may only be slow.
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
