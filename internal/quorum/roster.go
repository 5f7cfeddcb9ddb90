package quorum

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// roster is what this process knows of the nodes' membership. A quorum usually has one roster. But
// if a node is a Redis Cluster, the quorum has one roster for each slot in use, because different
// servers serve the slots. A server to which a slot has moved may not know the slot's leases.
//
// Before every vote, the node itself checks whether it may vote: it compares its marker with the
// text that this process has read, and with its own identity. So this process always notices when
// the server of a connection was restarted, emptied, promoted or replaced. The function decide
// plans the changes for such a server, and the method tend makes them.
type roster struct {
	quorum              *quorum
	markerKey, waitsKey string // names of two keys on each node: its marker, and when its waits began
	members             []member

	mu      sync.Mutex
	stepped []time.Time   // when each node's clock was last found wrong; zero: never, or the node has waited since
	tending chan struct{} // closed when the present look has ended; nil: no look is under way
	timer   *time.Timer   // starts the next look without a caller
	ended   bool

	renamed nodes // nodes whose other names this process has warned of
}

// member is what this process knows of one node as a member of the set.
type member struct {
	// text is the marker under which this process may ask the node for a vote. nil: the node does
	// not vote, or this process must look first, or the marker does not cover the longest TTL of
	// this process yet. Unlike standing.text, text is read without a mutex.
	text atomic.Pointer[string]

	asking  sync.Mutex // locked while this process looks at this node alone
	askedAt time.Time

	// The roster's mutex guards the fields below.
	standing
	absentSince time.Time // when the node stopped voting; zero: it votes
	warned      bool      // this process has warned that the node does not vote
}

// errChanged means that the node's marker differs from the text that this process has read.
var errChanged = &store.Refusal{Temporary: true, Err: errMayForget}

// newRoster returns a roster of the nodes of q whose keys on the nodes end with suffix.
func newRoster(q *quorum, suffix string) *roster {
	r := &roster{
		quorum: q, markerKey: redisstore.NodeKey + suffix, waitsKey: redisstore.BegunKey + suffix,
		members: make([]member, len(q.nodes)), stepped: make([]time.Time, len(q.nodes)),
	}
	for i := range r.members {
		r.members[i].standing = standing{state: store.NodeUnknown, reason: &store.Refusal{Temporary: true, Err: errUnknown}}
	}
	return r
}

// roster returns the roster of the nodes for key.
func (q *quorum) roster(key string) *roster {
	if !q.slotted {
		return q.whole
	}
	return q.rosterOf(redisstore.SlotOf(key))
}

// rosterOf returns the roster of the nodes for the given slot.
func (q *quorum) rosterOf(slot uint16) *roster {
	r, ok := q.slots.Load(slot)
	if !ok {
		r, _ = q.slots.LoadOrStore(slot, newRoster(q, ":"+redisstore.TagOfSlot(slot)))
	}
	return r.(*roster)
}

// quarantine returns how long a node that may have forgotten leases must not vote. The parameter
// longest is the longest TTL of these leases. They all end within the returned time, even if clocks
// run too fast or too slow by 1 %.
func (q *quorum) quarantine(longest time.Duration) time.Duration {
	return max(longest+longest/50+2*time.Millisecond, 4*q.skew) + 100*time.Millisecond
}

// texts returns the markers under which one step asks the nodes, with "" for a node that does not
// vote. All texts have the same set and generations, and each server occurs only once.
func (r *roster) texts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	texts, common := make([]string, len(r.members)), era{}
	for i := range r.members {
		text := r.members[i].text.Load()
		if text == nil || common != (era{}) && eraOf(*text) != common || slices.Contains(texts, *text) {
			continue
		}
		texts[i], common = *text, eraOf(*text)
	}
	return texts
}

// ensureTexts returns the same markers as texts. But if less than a quorum of nodes votes, it first
// looks at the nodes.
func (r *roster) ensureTexts(ctx context.Context) []string {
	if r.voting() < r.quorum.need {
		r.awaitTend(ctx)
	}
	return r.texts()
}

// voting returns the number of nodes that vote.
func (r *roster) voting() (n int) {
	for i := range r.members {
		if r.members[i].text.Load() != nil {
			n++
		}
	}
	return n
}

// textFor returns the marker under which node n is asked for its vote. If this process does not
// know the node yet, textFor looks at this node alone, so that a different node that hangs causes
// no delay.
func (r *roster) textFor(ctx context.Context, n *node) (*string, error) {
	m := &r.members[n.index]
	if text := m.text.Load(); text != nil {
		return text, nil
	}
	m.asking.Lock()
	defer m.asking.Unlock()
	if text := m.text.Load(); text != nil {
		return text, nil
	}
	if time.Since(m.askedAt) < lookInterval {
		return nil, r.reason(n.index)
	}
	v := r.look(ctx, n)
	if v.err != nil {
		return nil, v.err
	}
	m.askedAt = time.Now()
	if r.admit(n, v) {
		return m.text.Load(), nil
	}
	r.tendSoon()
	return nil, r.reason(n.index)
}

// reason returns the reason why node i does not vote.
func (r *roster) reason(i int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.members[i].reason; err != nil {
		return err
	}
	return errChanged
}

// absence returns the reason why node i does not vote, as far as this process knows it. It returns
// nil for a node that votes or was not asked yet.
func (r *roster) absence(i int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := &r.members[i]; m.text.Load() == nil && m.state != store.NodeUnknown {
		return m.reason
	}
	return nil
}

// admit lets node n vote if v proves that the node is a member. v is the result of one look at this
// node. Otherwise admit returns false, and a look at all nodes is needed.
func (r *roster) admit(n *node, v view) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := &v.marker
	if !v.intact() || v.evicts || m.state != stateVotes || len(m.seats) != len(r.members) || m.longest < r.quorum.longest || !r.stepped[n.index].IsZero() {
		return false
	}
	for i := range r.members {
		if text := r.members[i].text.Load(); text != nil && i != n.index && (eraOf(*text) != eraOf(v.text) || strings.HasPrefix(*text, v.id)) {
			return false
		}
	}
	r.setStanding(n.index, standing{text: v.text, state: store.NodeVotes})
	if r.timer == nil {
		r.scheduleLookLocked(0)
	}
	return true
}

// setStanding records the standing s of node i. The caller holds r.mu.
func (r *roster) setStanding(i int, s standing) {
	m := &r.members[i]
	m.standing = s
	if s.text == "" {
		m.text.Store(nil)
		if m.absentSince.IsZero() {
			m.absentSince = time.Now()
		}
		return
	}
	if m.warned {
		r.quorum.warn("node-returned", i, "the node votes again")
	}
	if known, _ := parseMarker(s.text); known.longest >= r.quorum.longest {
		m.text.Store(&s.text)
	} else { // this process has not asked for votes; when it asks, the nodes first learn of its longest TTL
		m.text.Store(nil)
	}
	m.absentSince, m.warned = time.Time{}, false
}

// forgetText is called when node n has answered that its marker is not text, the text of the
// request. After that, this process looks at the node again before its next request to the
// node.
func (r *roster) forgetText(n *node, text string) {
	m := &r.members[n.index]
	r.mu.Lock()
	if now := m.text.Load(); now != nil && *now == text {
		r.setStanding(n.index, standing{state: store.NodeUnknown, reason: errChanged})
	}
	r.mu.Unlock()
	m.asking.Lock()
	m.askedAt = time.Time{}
	m.asking.Unlock()
}

// timeToQuorum returns the time until enough nodes vote, or 0 when the time is unknown.
func (r *roster) timeToQuorum() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lefts []time.Duration
	for i := range r.members {
		if m := &r.members[i]; m.text.Load() != nil || m.remaining > 0 {
			lefts = append(lefts, m.remaining)
		}
	}
	slices.Sort(lefts)
	if len(lefts) < r.quorum.need {
		return 0
	}
	return lefts[r.quorum.need-1]
}
