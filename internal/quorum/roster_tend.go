package quorum

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

const (
	// lookInterval is the time between two looks at a node that does not vote.
	lookInterval = 250 * time.Millisecond
	// mostLooks is the largest number of looks that one call of tend makes at all nodes. Each step
	// needs one look.
	mostLooks = 8
)

// forgetAndTend calls forgetText for node n and text, and then looks at all nodes. It does both in
// the background.
func (r *roster) forgetAndTend(n *node, text string) {
	n.links.Pool.Do(func() {
		r.forgetText(n, text)
		r.tendSoon()
	})
}

// tendSoon looks at all nodes and makes the changes that are due, in the background.
func (r *roster) tendSoon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tendLocked()
}

// tendLocked does the work of tendSoon for a caller that holds r.mu.
func (r *roster) tendLocked() {
	if r.tending != nil || r.ended {
		return
	}
	ended := make(chan struct{})
	r.tending = ended
	r.quorum.pool.Do(func() {
		for again := true; again; {
			asks := r.quorum.asks.Load()
			r.tend(r.quorum.background, wish{})
			r.mu.Lock()
			if again = asks != r.quorum.asks.Load(); !again { // otherwise the first acquire waits for the nodes to learn of its longest TTL
				r.tending = nil
			}
			r.mu.Unlock()
		}
		close(ended)
	})
}

// awaitTend starts a look at all nodes, and waits for its end, at most for the quorum's patience.
func (r *roster) awaitTend(ctx context.Context) {
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

// tend looks at all nodes and changes their markers, as the wish w requires, until no change is
// due. Every change is an idempotent compare-and-set that any process may make. So a process may
// end at any point, and other processes continue.
func (r *roster) tend(ctx context.Context, w wish) {
	q := r.quorum
	w.longest, w.asks, w.quarantine, w.newGeneration = q.longest, q.asks.Load(), q.quarantine, q.newGeneration
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
		r.makeSteps(ctx, p.steps)
	}
	r.scheduleLook(tick)
}

// expelled returns the nodes whose clocks were wrong and that, by the views, still vote for other
// processes. Such a node may have dropped leases of other processes, which may be longer than the
// leases of this process. The longest of them is in the node's own marker. So a node stays expelled
// until it answers.
func (r *roster) expelled(views []view) (s nodes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, at := range r.stepped {
		switch v := &views[i]; {
		case at.IsZero():
		case v.err == nil && v.marked && v.marker.state != stateVotes,
			v.err == nil && time.Since(at) > r.quorum.quarantine(max(r.quorum.longest, v.marker.longest)):
			r.stepped[i] = time.Time{}
		default:
			s = s.plus(i)
		}
	}
	return s
}

// apply records the result of a look: the plan p that follows from the views.
func (r *roster) apply(views []view, p plan) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.warnOfNamesLocked(views, p)
	for i, s := range p.nodes {
		m := &r.members[i]
		text := m.text.Load()
		if views[i].err != nil && text != nil && !slices.ContainsFunc(p.nodes, func(o standing) bool {
			return o.text != "" && (o.text == *text || eraOf(o.text) != eraOf(*text))
		}) {
			if m.absentSince.IsZero() {
				m.absentSince = time.Now()
			}
			m.state, m.reason = s.state, s.reason // the node's next vote shows whether it still votes
		} else {
			r.setStanding(i, s)
		}
		if m.absentSince.IsZero() || m.warned {
			continue
		}
		// Warn at once of a state that does not end by itself. Warn of any other state when it
		// should have ended.
		switch s.state {
		case store.NodeReplaced, store.NodeStranger, store.NodeTwice, store.NodeEvicts, store.NodeUnsupported, store.NodeClock:
		default:
			if time.Since(m.absentSince) < r.quorum.quarantine(r.quorum.longest) {
				continue
			}
		}
		m.warned = true
		r.quorum.warn("node-out", i, fmt.Sprintf("the node does not vote (%s), so fewer other nodes may fail: %v", s.state, s.reason))
	}
}

// warnOfNamesLocked warns once of each node that has another address in this process than in the
// set. The nodes vote all the same, and a server that forgets finds its seat. But when several
// nodes forget at the same time, the names help to tell which server is which. The caller holds
// r.mu.
func (r *roster) warnOfNamesLocked(views []view, p plan) {
	for n := range r.quorum.eachNode(p.renamed) {
		if r.renamed.has(n.index) {
			continue
		}
		r.renamed = r.renamed.plus(n.index)
		m := &views[n.index].marker
		r.quorum.warn("other-names", n.index, fmt.Sprintf("another process calls this node %s; give all processes the same names of the nodes", m.seats[m.seat].label))
	}
}

// makeSteps makes the changes in steps, at several nodes at once.
func (r *roster) makeSteps(ctx context.Context, steps []step) {
	var targets nodes
	for _, s := range steps {
		targets = targets.plus(s.node)
	}
	f := fanOut(r.quorum, targets, nil, async(func(n *node) (struct{}, error) {
		for _, s := range steps {
			if s.node != n.index {
				continue
			}
			if _, err := markScript.Run(ctx, n.links, []string{r.markerKey, r.waitsKey}, s.id, s.old, s.text, s.begin); err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	}))
	defer f.stop()
	for range f.remaining { // the answers are not used, because the next look shows the result
	}
}

// scheduleLook sets the time of the next look. If tick is more than 0, a wait ends after tick, and
// the look follows then. Otherwise the look follows after the usual interval. The looks at
// intervals are for a process that takes no lock for hours. Such a process must also notice that a
// node has returned or was lost. A Redis Cluster has too many slots for looks at intervals.
func (r *roster) scheduleLook(tick time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scheduleLookLocked(tick)
}

// scheduleLookLocked does the work of scheduleLook for a caller that holds r.mu.
func (r *roster) scheduleLookLocked(tick time.Duration) {
	q := r.quorum
	if tick > 0 {
		tick += 5 * time.Millisecond
	} else if tick = max(q.quarantine(q.longest), time.Second); q.slotted {
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

// stop prevents further looks.
func (r *roster) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.timer != nil {
		r.timer.Stop()
	}
}

// newGeneration makes a new generation, which is larger than the generation previous.
func (q *quorum) newGeneration(previous string) string {
	var tail [3]byte
	_, _ = rand.Read(tail[:])
	micros, _, _ := strings.Cut(previous, "-")
	last, _ := strconv.ParseInt(micros, 16, 64)
	return fmt.Sprintf("%013x-%s", max(q.clocks.now().UnixMicro(), last+1), hex.EncodeToString(tail[:]))
}

// warn reports a change of node i's standing, with the given code and text.
func (q *quorum) warn(code string, i int, text string) {
	if q.report != nil {
		n := q.nodes[i]
		n.links.Pool.Do(func() { q.report(store.Warning{Code: code, Text: n.error(errors.New(text)).Error()}) })
	}
}

// Watch makes the quorum report changes of its nodes' standing, and the nodes from which no
// messages come.
func (q *quorum) Watch(report func(store.Warning)) {
	q.report = report
	for i, n := range q.nodes {
		if n.subscription != nil {
			n.subscription.Watch(func(w store.Warning) { q.warn(w.Code, i, w.Text) })
		}
	}
}

// Nodes looks at all nodes, makes the changes that are due, and returns the state of each node.
func (q *quorum) Nodes(ctx context.Context) ([]store.Node, error) {
	r := q.whole
	if q.slotted {
		r = q.rosterOf(0)
	}
	r.awaitTend(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]store.Node, len(q.nodes))
	for i, n := range q.nodes {
		m := &r.members[i]
		all[i] = store.Node{Index: i, Addr: n.addr, State: m.state, Left: m.remaining, Offset: q.clocks.offset(i)}
		if m.reason != nil {
			all[i].Reason = m.reason.Error()
		}
		if n.subscription != nil {
			all[i].Polls = n.subscription.Polls()
		}
	}
	return all, ctx.Err()
}
