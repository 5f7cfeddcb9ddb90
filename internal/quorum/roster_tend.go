package quorum

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

const (
	// askAgain is the time between two looks at a node that does not vote.
	askAgain = 250 * time.Millisecond
	// mostLooks is the largest number of looks that one call of tend makes at all nodes. Each step
	// needs one look.
	mostLooks = 8
)

// outdated first calls the method changed, and then looks at all nodes. It does both in the
// background.
func (r *roster) outdated(n *node, text string) {
	n.links.Go(func() {
		r.changed(n, text)
		r.tendSoon()
	})
}

// tendSoon looks at all nodes and makes the changes that are due, in the background.
func (r *roster) tendSoon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tendLocked()
}

func (r *roster) tendLocked() {
	if r.tending != nil || r.ended {
		return
	}
	ended := make(chan struct{})
	r.tending = ended
	r.quorum.nodes[0].links.Go(func() {
		r.tend(r.quorum.background, wish{})
		r.mu.Lock()
		r.tending = nil
		r.mu.Unlock()
		close(ended)
	})
}

// tended starts a look at all nodes and waits for its end, at most for the quorum's patience.
func (r *roster) tended(ctx context.Context) {
	r.mu.Lock()
	r.tendLocked()
	ended := r.tending
	r.mu.Unlock()
	if ended == nil {
		return
	}
	timer := r.quorum.timers.Start(r.quorum.patience)
	defer r.quorum.timers.Stop(timer)
	select {
	case <-ended:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// tend looks at all nodes and changes their markers until no change is due. Every change is an
// idempotent compare-and-set that any process may make. So a process may end at any point, and
// other processes continue.
func (r *roster) tend(ctx context.Context, w wish) {
	q := r.quorum
	w.longest, w.gate, w.fresh = q.longest, q.gate, q.fresh
	for _, n := range q.nodes {
		w.labels = append(w.labels, n.label)
	}
	tick := time.Duration(0)
	for range mostLooks {
		views := r.lookAll(ctx)
		w.expel = r.expelled(views)
		p := decide(views, w)
		r.apply(views, p)
		if tick = p.tick; len(p.steps) == 0 {
			break
		}
		r.take(ctx, p.steps)
	}
	r.again(tick)
}

// expelled returns the nodes whose clocks were wrong and that still vote for other processes.
func (r *roster) expelled(views []view) (s nodes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, at := range r.stepped {
		switch v := &views[i]; {
		case at.IsZero():
		case time.Since(at) > r.quorum.gate(r.quorum.longest), v.err == nil && v.marked && v.marker.state != votes:
			r.stepped[i] = time.Time{}
		default:
			s = s.with(i)
		}
	}
	return s
}

// apply records the result of a look.
func (r *roster) apply(views []view, p plan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, s := range p.nodes {
		m := &r.members[i]
		text := m.text.Load()
		if views[i].err != nil && text != nil && !slices.ContainsFunc(p.nodes, func(o standing) bool {
			return o.text != "" && (o.text == *text || under(o.text) != under(*text))
		}) {
			if m.since.IsZero() {
				m.since = time.Now()
			}
			m.state, m.why = s.state, s.why // the node's next vote shows whether it still votes
		} else {
			r.stand(i, s)
		}
		if m.since.IsZero() || m.warned {
			continue
		}
		// Warn at once of a state that does not end by itself. Warn of any other state when it
		// should have ended.
		switch s.state {
		case store.NodeReplaced, store.NodeStranger, store.NodeTwice, store.NodeEvicts, store.NodeUnsupported, store.NodeClock:
		default:
			if time.Since(m.since) < r.quorum.gate(r.quorum.longest) {
				continue
			}
		}
		m.warned = true
		r.quorum.warn("node-out", i, fmt.Sprintf("the node does not vote (%s), so fewer other nodes may fail: %v", s.state, s.why))
	}
}

// take makes changes at several nodes at once.
func (r *roster) take(ctx context.Context, steps []step) {
	var to nodes
	for _, s := range steps {
		to = to.with(s.node)
	}
	f := fanOut(r.quorum, to, nil, waiting(func(n *node) (struct{}, error) {
		for _, s := range steps {
			if s.node != n.index {
				continue
			}
			if _, err := markScript.Run(ctx, n.Client, []string{r.marker, r.begun}, s.id, s.old, s.text, s.begin); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	}))
	defer f.done()
	for range f.rest { // the next look shows the result
	}
}

// again sets the time of the next look: the end of a wait, or otherwise the next interval. The
// looks at intervals are for a process that takes no lock for hours. Such a process must also
// notice that a node has returned or was lost. A Redis Cluster has too many slots for looks at
// intervals.
func (r *roster) again(tick time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.againLocked(tick)
}

func (r *roster) againLocked(tick time.Duration) {
	q := r.quorum
	if tick > 0 {
		tick += 5 * time.Millisecond
	} else if tick = max(q.gate(q.longest), time.Second); q.slotted {
		return
	}
	if r.ended {
		return
	}
	if r.timer != nil {
		r.timer.Stop()
	}
	r.timer = time.AfterFunc(tick, r.tendSoon)
}

// end prevents further looks.
func (r *roster) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.timer != nil {
		r.timer.Stop()
	}
}

// fresh makes a new generation, which is larger than the generation "after".
func (q *quorum) fresh(after string) string {
	var tail [3]byte
	_, _ = rand.Read(tail[:])
	micros, _, _ := strings.Cut(after, "-")
	last, _ := strconv.ParseInt(micros, 16, 64)
	return fmt.Sprintf("%013x-%s", max(q.clocks.now().UnixMicro(), last+1), hex.EncodeToString(tail[:]))
}
