package quorum

import (
	"context"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker/store"
)

// clockSeen records a node's clock. A node whose clock has stepped may have dropped leases too
// early, but its marker does not show the step.
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
