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
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker/store"
)

// roster is this process's knowledge of the nodes' membership. A quorum has one roster. A quorum
// with a Redis Cluster among its nodes has one roster for each slot in use: slots are served by
// different servers, and a slot that has moved is served by a server that may not know the slot's
// leases.
//
// The node itself checks with every vote whether it may vote: in the same step it compares its
// marker with the text that this process has read, and with its own identity. So a connection to a
// server that was restarted, emptied, promoted or replaced is always noticed. decide plans the
// changes for such a server, and tend makes them.
type roster struct {
	quorum        *quorum
	marker, begun string // keys
	members       []member

	mu      sync.Mutex
	stepped []time.Time   // when a node's clock last was wrong
	tending chan struct{} // closed when the look under way has ended; nil: none is under way
	timer   *time.Timer   // of the next look without a caller
	ended   bool
}

// member is the membership of one node.
type member struct {
	text atomic.Pointer[string] // marker under which the node votes; nil: it does not vote

	asking sync.Mutex // held while only this node is asked
	asked  time.Time

	// The roster's mutex guards these.
	standing
	since  time.Time // since when it does not vote; zero: it votes
	warned bool      // a warning was sent that it does not vote
}

const (
	// askAgain is the time between two looks at a node that does not vote.
	askAgain = 250 * time.Millisecond
	// mostLooks bounds the looks of one call of tend. Each step needs one look.
	mostLooks = 8
)

// errChanged: the node's marker differs from the text that this process has read.
var errChanged = &store.Refusal{Temporary: true, Err: errMayForget}

func newRoster(q *quorum, suffix string) *roster {
	r := &roster{
		quorum: q, marker: redisstore.NodeKey + suffix, begun: redisstore.BegunKey + suffix,
		members: make([]member, len(q.nodes)), stepped: make([]time.Time, len(q.nodes)),
	}
	for i := range r.members {
		r.members[i].standing = standing{state: store.NodeUnknown, why: &store.Refusal{Temporary: true, Err: errUnknown}}
	}
	return r
}

// roster is the roster that counts for a key.
func (q *quorum) roster(key string) *roster {
	if !q.slotted {
		return q.whole
	}
	return q.rosterOf(redisstore.SlotOf(key))
}

func (q *quorum) rosterOf(slot uint16) *roster {
	r, ok := q.slots.Load(slot)
	if !ok {
		r, _ = q.slots.LoadOrStore(slot, newRoster(q, ":"+redisstore.TagOfSlot(slot)))
	}
	return r.(*roster)
}

// gate is how long a node that may have forgotten leases of that TTL does not vote: until these
// leases are over, by clocks whose rates may each be wrong by 1 %.
func (q *quorum) gate(longest time.Duration) time.Duration {
	return max(longest+longest/50+2*time.Millisecond, 4*q.skew) + 100*time.Millisecond
}

// texts are the markers under which one step asks the nodes, "" for a node that does not vote. All
// texts have the same set and generations, and each server is there only once.
func (r *roster) texts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	texts, common := make([]string, len(r.members)), ""
	for i := range r.members {
		text := r.members[i].text.Load()
		if text == nil || common != "" && under(*text) != common || slices.Contains(texts, *text) {
			continue
		}
		texts[i], common = *text, under(*text)
	}
	return texts
}

// known is texts, after a look at the nodes if fewer than a quorum vote.
func (r *roster) known(ctx context.Context) []string {
	if r.voting() < r.quorum.need {
		r.tended(ctx)
	}
	return r.texts()
}

// voting is the number of nodes that vote.
func (r *roster) voting() (n int) {
	for i := range r.members {
		if r.members[i].text.Load() != nil {
			n++
		}
	}
	return n
}

// admitted is the marker under which a node is asked for its vote. A node that this process does
// not know yet gets a look of its own, so that a node that hangs does not delay the others.
func (r *roster) admitted(ctx context.Context, n *node) (*string, error) {
	m := &r.members[n.index]
	if text := m.text.Load(); text != nil {
		return text, nil
	}
	m.asking.Lock()
	defer m.asking.Unlock()
	if text := m.text.Load(); text != nil {
		return text, nil
	}
	if time.Since(m.asked) < askAgain {
		return nil, r.why(n.index)
	}
	v := r.look(ctx, n)
	if v.err != nil {
		return nil, v.err
	}
	m.asked = time.Now()
	if r.admit(n, v) {
		return m.text.Load(), nil
	}
	r.tendSoon()
	return nil, r.why(n.index)
}

// why is the reason why a node does not vote.
func (r *roster) why(i int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.members[i].why; err != nil {
		return err
	}
	return errChanged
}

// admit lets a node vote if its view alone proves that it is a member. Otherwise a look at all
// nodes is needed.
func (r *roster) admit(n *node, v view) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := &v.marker
	if !v.intact() || v.evicts || m.state != votes || len(m.seats) != len(r.members) || m.longest < r.quorum.longest || !r.stepped[n.index].IsZero() {
		return false
	}
	for i := range r.members {
		if text := r.members[i].text.Load(); text != nil && i != n.index && (under(*text) != under(v.text) || strings.HasPrefix(*text, v.id)) {
			return false
		}
	}
	r.stand(n.index, standing{text: v.text, state: store.NodeVotes})
	if r.timer == nil {
		r.againLocked(0)
	}
	return true
}

// stand records the standing of a node. r.mu is held.
func (r *roster) stand(i int, s standing) {
	m := &r.members[i]
	m.standing = s
	if s.text == "" {
		m.text.Store(nil)
		if m.since.IsZero() {
			m.since = time.Now()
		}
		return
	}
	if m.warned {
		r.quorum.warn("node-returned", i, "the node votes again")
	}
	m.text.Store(&s.text)
	m.since, m.warned = time.Time{}, false
}

// changed is called when a node's marker was not the text of the request.
func (r *roster) changed(n *node, text string) {
	m := &r.members[n.index]
	r.mu.Lock()
	if now := m.text.Load(); now != nil && *now == text {
		r.stand(n.index, standing{state: store.NodeUnknown, why: errChanged})
	}
	r.mu.Unlock()
	m.asking.Lock()
	m.asked = time.Time{}
	m.asking.Unlock()
}

// clockSeen records a node's clock. A node whose clock has stepped may have dropped leases too
// early. Its marker does not show that.
func (r *roster) clockSeen(n *node, at, sent time.Time) {
	q := r.quorum
	q.clocks.note(n.index, at, sent)
	off := q.clocks.wrong(q.skew, q.need)
	if off == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := range q.each(off) {
		if r.members[o.index].text.Load() != nil {
			r.stand(o.index, standing{state: store.NodeClock, why: &store.Refusal{Temporary: true, Err: errClockStepped}})
			r.tendLocked()
		}
		r.stepped[o.index] = time.Now()
	}
}

// outdated calls changed and looks at all nodes, in the background.
func (r *roster) outdated(n *node, text string) {
	n.links.Go(func() {
		r.changed(n, text)
		r.tendSoon()
	})
}

// look reads a node's marker.
func (r *roster) look(ctx context.Context, n *node) view {
	sent := time.Now()
	text, err := lookScript.Run(ctx, n.Client, []string{r.marker, r.begun})
	if err != nil {
		return view{err: err}
	}
	reply := redisstore.Reply{Rest: text}
	v := view{at: reply.Time(), id: reply.Word(), evicts: reply.Word() == "1", text: reply.Word(), begun: make(map[string]time.Time)}
	if v.id == "" {
		return view{err: redisstore.Unreadable("look")}
	}
	if v.text == "-" {
		v.text = ""
	}
	v.marker, v.marked = parseMarker(v.text)
	for reply.Rest != "" {
		v.begun[reply.Word()] = reply.Time()
	}
	r.clockSeen(n, v.at, sent)
	if off := r.quorum.clocks.off(n.index); off > r.quorum.skew {
		v.off = off
	}
	return v
}

// lookAll looks at all nodes at once.
func (r *roster) lookAll(ctx context.Context) []view {
	q := r.quorum
	views := make([]view, len(q.nodes))
	for i := range views {
		views[i].err = errSilent
	}
	f := fanOut(q, q.all(), nil, waiting(func(n *node) (view, error) {
		if q.behind(n) {
			return view{}, errBehind
		}
		v := r.look(ctx, n)
		return v, v.err
	}))
	defer f.done()
	for n, a := range f.rest {
		views[n.index] = a.value
		views[n.index].err = a.err
	}
	return views
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

// expelled is the set of nodes whose clocks were wrong and that still vote for other processes.
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
			m.state, m.why = s.state, s.why // its next vote shows whether it still votes
		} else {
			r.stand(i, s)
		}
		if m.since.IsZero() || m.warned {
			continue
		}
		switch s.state { // warn at once of a state that does not end by itself, of any other when it should have ended
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

// again sets the time of the next look: when a wait is over, and otherwise at intervals. So a
// process that takes no lock for hours also notices that a node has returned or was lost. A Redis
// Cluster has too many slots for looks at intervals.
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

// left is the time until enough nodes vote, 0 when it is unknown.
func (r *roster) left() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lefts []time.Duration
	for i := range r.members {
		if m := &r.members[i]; m.text.Load() != nil || m.left > 0 {
			lefts = append(lefts, m.left)
		}
	}
	slices.Sort(lefts)
	if len(lefts) < r.quorum.need {
		return 0
	}
	return lefts[r.quorum.need-1]
}

// fresh makes a new generation, larger than after.
func (q *quorum) fresh(after string) string {
	var tail [3]byte
	_, _ = rand.Read(tail[:])
	micros, _, _ := strings.Cut(after, "-")
	last, _ := strconv.ParseInt(micros, 16, 64)
	return fmt.Sprintf("%013x-%s", max(q.clocks.now().UnixMicro(), last+1), hex.EncodeToString(tail[:]))
}

// warn reports a change of a node's standing.
func (q *quorum) warn(code string, i int, text string) {
	if q.report != nil {
		n := q.nodes[i]
		n.links.Go(func() { q.report(store.Warning{Code: code, Text: n.error(errors.New(text)).Error()}) })
	}
}

// Watch makes the quorum report changes of its nodes' standing.
func (q *quorum) Watch(report func(store.Warning)) { q.report = report }

// Nodes looks at all nodes, makes the changes that are due, and returns the state of each node.
func (q *quorum) Nodes(ctx context.Context) ([]store.Node, error) {
	r := q.whole
	if q.slotted {
		r = q.rosterOf(0)
	}
	r.tended(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]store.Node, len(q.nodes))
	for i, n := range q.nodes {
		m := &r.members[i]
		all[i] = store.Node{Index: i, Addr: n.addr, State: m.state, Left: m.left, Offset: q.clocks.offset(i)}
		if m.why != nil {
			all[i].Reason = m.why.Error()
		}
	}
	return all, ctx.Err()
}
