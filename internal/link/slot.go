package link

import (
	"context"
	"time"
)

// every is the time after which a call starts a new slot.
const every = 50 * time.Millisecond

// slot is the context of all calls that begin within the same 50 ms, so that one timer serves all
// these calls. The end of the context also ends a dial and a wait for a connection. The deadline of
// the context ends reads and writes, if the client's options allow this. The link's mutex guards
// all fields.
type slot struct {
	ctx     context.Context
	cancel  context.CancelFunc
	silence func() bool // prevents the call of slots.over for this slot
	began   time.Time
	past    bool      // a newer slot has taken its place
	flights []*flight // flights that have not landed
}

// slots makes one slot after the other. When the age of a slot reaches life, the slot ends all its
// calls.
type slots struct {
	life    time.Duration
	over    func(*slot) // called when a slot ends while its flights are under way; may be nil
	present *slot
}

// at returns the slot of a call that begins now.
func (s *slots) at(now time.Time) *slot {
	if s.present != nil && now.Sub(s.present.began) < every {
		return s.present
	}
	s.leave()
	n := &slot{began: now}
	n.ctx, n.cancel = context.WithDeadline(context.Background(), now.Add(s.life))
	if s.over != nil {
		n.silence = context.AfterFunc(n.ctx, func() { s.over(n) })
	}
	s.present = n
	return n
}

// leave makes the present slot a past slot. A past slot ends when its flights have landed.
func (s *slots) leave() {
	if s.present == nil {
		return
	}
	s.present.past = true
	s.present.tidy()
	s.present = nil
}

// enter adds a flight to the slot.
func (s *slot) enter(f *flight) {
	f.slot, f.place = s, len(s.flights)
	s.flights = append(s.flights, f)
}

// land removes a flight from the slot.
func (s *slot) land(f *flight) {
	last := len(s.flights) - 1
	s.flights[f.place] = s.flights[last]
	s.flights[f.place].place = f.place
	s.flights[last] = nil
	s.flights = s.flights[:last]
	s.tidy()
}

// tidy stops the timer of a past slot without flights.
func (s *slot) tidy() {
	if !s.past || len(s.flights) > 0 {
		return
	}
	if s.silence != nil {
		s.silence()
	}
	s.cancel()
}

// with returns the slot's context, with the values of a caller's context.
func (s *slot) with(values context.Context) context.Context {
	if values == context.Background() {
		return s.ctx
	}
	return valued{s.ctx, values}
}

// valued is a context that ends with one context and also has the values of another context.
type valued struct {
	context.Context
	values context.Context
}

// Value first asks the embedded context, because a derived context finds its parent by Value.
func (v valued) Value(key any) any {
	if own := v.Context.Value(key); own != nil {
		return own
	}
	return v.values.Value(key)
}
