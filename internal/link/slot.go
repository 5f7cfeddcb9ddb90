package link

import (
	"context"
	"time"
)

// slotLength is the age of a slot at which the next call starts a new slot.
const slotLength = 50 * time.Millisecond

// slot is the context of all calls that begin within the same 50 ms, so that one timer serves all
// these calls. The end of the context also ends a dial and a wait for a connection. The deadline of
// the context ends reads and writes, if the client's options allow this. The link's mutex guards
// all fields.
type slot struct {
	ctx      context.Context
	cancel   context.CancelFunc
	silence  func() bool // prevents the call of slots.onEnd for this slot
	began    time.Time
	replaced bool      // a newer slot has taken its place
	flights  []*flight // flights that have not landed
}

// slots makes one slot after the other. When the age of a slot reaches life, the slot ends all its
// calls.
type slots struct {
	life    time.Duration
	onEnd   func(*slot) // called when a slot ends while its flights are under way; may be nil
	present *slot
}

// slotAt returns the slot of a call that begins at the time now, and starts a new slot if the
// present slot is too old.
func (s *slots) slotAt(now time.Time) *slot {
	if s.present != nil && now.Sub(s.present.began) < slotLength {
		return s.present
	}
	s.replacePresent()
	n := &slot{began: now}
	n.ctx, n.cancel = context.WithDeadline(context.Background(), now.Add(s.life))
	if s.onEnd != nil {
		n.silence = context.AfterFunc(n.ctx, func() { s.onEnd(n) })
	}
	s.present = n
	return n
}

// replacePresent marks the present slot as replaced. A replaced slot ends when its flights have
// landed.
func (s *slots) replacePresent() {
	if s.present == nil {
		return
	}
	s.present.replaced = true
	s.present.stopIfUnused()
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
	s.stopIfUnused()
}

// stopIfUnused stops the timer of the slot if the slot was replaced and has no flights.
func (s *slot) stopIfUnused() {
	if !s.replaced || len(s.flights) > 0 {
		return
	}
	if s.silence != nil {
		s.silence()
	}
	s.cancel()
}

// withValues returns the slot's context together with the values of the context values.
func (s *slot) withValues(values context.Context) context.Context {
	if values == context.Background() {
		return s.ctx
	}
	return valuedContext{s.ctx, values}
}

// valuedContext is a context that ends with one context and also has the values of another context.
type valuedContext struct {
	context.Context
	values context.Context
}

// Value first asks the embedded context, because a derived context finds its parent by Value.
func (v valuedContext) Value(key any) any {
	if own := v.Context.Value(key); own != nil {
		return own
	}
	return v.values.Value(key)
}
