package quorum

import (
	"context"
	"time"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// recordClock records that the clock of node n showed the time clock after sentAt. A node whose
// clock has stepped may have dropped leases too early, but its marker does not show the step.
func (r *roster) recordClock(n *node, clock, sentAt time.Time) {
	q := r.quorum
	q.clocks.note(n.index, clock, sentAt)
	wrong := q.clocks.outliers(q.skew, q.need)
	if wrong == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := range q.eachNode(wrong) {
		if r.members[o.index].text.Load() != nil {
			r.setStanding(o.index, standing{state: store.NodeClock, reason: &store.Refusal{Temporary: true, Err: errClockStepped}})
			r.tendLocked()
		}
		r.stepped[o.index] = time.Now()
	}
}

// look reads the marker of node n, and returns what it shows.
func (r *roster) look(ctx context.Context, n *node) view {
	sentAt := time.Now()
	text, err := lookScript.Run(ctx, n.links, []string{r.markerKey, r.waitsKey})
	if err != nil {
		return view{err: err}
	}
	reply := redisstore.Reply{Rest: text}
	v := view{clock: reply.Time(), id: reply.Word(), evicts: reply.Word() == "1", text: reply.Word(), waits: make(map[string]time.Time)}
	if v.id == "" {
		return view{err: redisstore.Unreadable("look")}
	}
	if v.text == "-" {
		v.text = ""
	}
	v.marker, v.marked = parseMarker(v.text)
	for reply.Rest != "" {
		v.waits[reply.Word()] = reply.Time()
	}
	r.recordClock(n, v.clock, sentAt)
	if off := r.quorum.clocks.deviation(n.index); off > r.quorum.skew {
		v.clockOff = off
	}
	return v
}

// lookAll looks at all nodes at once, and returns a view of each.
func (r *roster) lookAll(ctx context.Context) []view {
	views := make([]view, len(r.members))
	for i, a := range askAll(r.quorum, func(n *node) (view, error) {
		if r.quorum.lags(n) {
			return view{}, errLags
		}
		v := r.look(ctx, n)
		return v, v.err
	}) {
		views[i] = a.value
		views[i].err = a.err
	}
	return views
}
