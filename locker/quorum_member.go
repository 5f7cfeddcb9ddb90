package locker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// member is whether a node may vote, as far as this process knows. The node itself says so with every vote: it compares its
// marker with its identity in the same step, so no connection can lead to a server that was restarted, emptied or promoted
// without its being seen. A node that may have forgotten what it has granted becomes a member again when nothing of that can
// matter any more, by the clock of this process.
type member struct {
	marker, out string // keys: the marker, and the quarantine
	in          atomic.Bool
	id          string // of the data, when it was last told; guarded by the quorum's mutex

	mu    sync.Mutex // held while the node is asked
	asked time.Time
	seen  quarantine
	why   error // it may not vote
}

// quarantine is a time in which a node does not vote.
type quarantine struct {
	id, name string    // of the data, and of the quarantine itself
	since    time.Time // when this process first heard of it
	lasts    time.Duration
}

// askAgain is how often a node that may not vote is asked whether it may by now.
const askAgain = 250 * time.Millisecond

// memberAt is the node's membership for a key. A Redis Cluster has one for each slot, where the key lies: each slot is served by
// another server, and one that has moved has come to a server that does not know what was granted in it.
func (n *node) memberAt(slot uint16) *member {
	if n.cluster == nil {
		return &n.member
	}
	m, ok := n.slots.Load(slot)
	if !ok {
		tag := tagOfSlot(slot)
		m, _ = n.slots.LoadOrStore(slot, &member{marker: nodeKey + ":" + tag, out: outKey + ":" + tag})
	}
	return m.(*member)
}

// expel makes the node be asked who it is before it votes again.
func (m *member) expel() { m.in.Store(false) }

// admitted is nil when the node may be asked for its vote.
func (n *node) admitted(ctx context.Context, m *member, slot uint16) error {
	if m.in.Load() {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.in.Load() {
		return nil
	}
	over := m.seen.name != "" && time.Since(m.seen.since) >= m.seen.lasts
	if m.why != nil && time.Since(m.asked) < askAgain && !over {
		return m.why
	}
	waitedFor, waited := "", time.Duration(0)
	if over {
		waitedFor, waited = m.seen.name, time.Since(m.seen.since)
	}
	err := n.enroll(ctx, m, slot, waitedFor, waited)
	m.asked, m.why = time.Now(), nil
	if isRefusal(err) {
		m.why = err
	}
	return err
}

// enroll runs quorum_enroll.lua. m.mu is held.
func (n *node) enroll(ctx context.Context, m *member, slot uint16, waitedFor string, waited time.Duration) error {
	q := n.quorum
	v, err := quorumEnrollScript.run(ctx, n.client, []string{m.marker, m.out},
		q.longest.Load()/int64(time.Millisecond), millis(q.gate()), waitedFor, int64(waited/time.Millisecond))
	if err != nil {
		return err
	}
	r := reply{v}
	state, id := r.word(), r.word()
	switch state {
	case "member":
		m.seen = quarantine{}
		q.learn(r.duration())
		return q.admit(n, m, slot, id)
	case "quarantine":
		name, lasts := r.word(), r.duration()
		if m.seen.id != id || m.seen.name != name {
			m.seen = quarantine{id: id, name: name, since: time.Now()}
		}
		m.seen.lasts = lasts
		return &Refusal{Temporary: true, Err: fmt.Errorf(
			"it may have forgotten leases, because it is new, was restarted, emptied or replaced; it does not vote for another %v (when none of the nodes was ever used, say so with EnrollRedlock)",
			max(lasts-time.Since(m.seen.since), 0).Round(time.Second/10))}
	case "old":
		return &Refusal{Err: errors.New("it was a node before and its data was replaced since, so it is not new: it must wait; use the Locker, which sees to that")}
	case "unknown":
		return &Refusal{Err: fmt.Errorf("%w: the server does not tell its replication ID (INFO replication), without which it could not be noticed that it has forgotten leases", ErrUnsupported)}
	}
	return odd("enroll")
}

// gate is how long a node that may have forgotten does not vote.
func (q *quorum) gate() time.Duration {
	longest := time.Duration(q.longest.Load())
	return max(longest+q.drift(longest), 4*q.skew) + 100*time.Millisecond
}

// learn remembers that there may be leases of that length.
func (q *quorum) learn(longest time.Duration) {
	for {
		known := q.longest.Load()
		if known >= int64(longest) || q.longest.CompareAndSwap(known, int64(longest)) {
			return
		}
	}
}

// forgot is called when a node has. The others are asked once more who they are, because they remember how long leases may be,
// while that one has forgotten that, too.
func (n *node) forgot(slot uint16) {
	for _, other := range n.quorum.nodes {
		other.memberAt(slot).expel()
	}
}

// admit makes a node a member, unless another one is the same server, or of the same replica set: it would vote twice.
func (q *quorum) admit(n *node, m *member, slot uint16, id string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	m.id = id
	for _, other := range q.nodes {
		if o := other.memberAt(slot); other != n && o.id == id && o.in.Load() {
			return &Refusal{Err: fmt.Errorf("%w: it is the same server as node %d, or of the same replica set, and does not vote twice; give clients of independent servers",
				ErrUnsupported, other.index)}
		}
	}
	m.in.Store(true)
	return nil
}

// enrollAll declares the node new: all that is one, each of its slots.
func (n *node) enrollAll(ctx context.Context) error {
	if n.cluster == nil {
		return n.enrollNew(ctx, 0)
	}
	var all sync.WaitGroup
	var failed atomic.Pointer[error]
	next := atomic.Int32{}
	for range mostAtOnce {
		all.Go(func() {
			for failed.Load() == nil {
				i := next.Add(1) - 1
				if i >= slotCount {
					return
				}
				if err := n.enrollNew(ctx, uint16(i)); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (n *node) enrollNew(ctx context.Context, slot uint16) error {
	m := n.memberAt(slot)
	m.mu.Lock()
	defer m.mu.Unlock()
	return n.enroll(lasting(ctx), m, slot, "new", 0)
}
