package link

import (
	"context"
	"time"
)

// every is how often there is a new slot, while there are calls.
const every = 50 * time.Millisecond

// slot is the context of all calls that begin within the same 50 ms: one timer instead of one for
// each call. Its end ends the wait for a connection and a dial; its deadline ends reads and writes,
// where the client asks for it. All is guarded by the link's mutex.
type slot struct {
	ctx     context.Context
	cancel  context.CancelFunc
	silence func() bool // ends the watch over its flights
	began   time.Time
	past    bool      // another slot is the present one
	flights []*flight // that have not landed
}

// slots makes them. The calls of a slot end life after it began.
type slots struct {
	life    time.Duration
	over    func(*slot) // called once a slot has ended with its flights under way; nil: never
	present *slot
}

// at is the slot of a call that begins now.
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

// leave ends the present slot as soon as its flights have landed.
func (s *slots) leave() {
	if s.present == nil {
		return
	}
	s.present.past = true
	s.present.tidy()
	s.present = nil
}

// enter counts a flight among those of the slot.
func (s *slot) enter(f *flight) {
	f.slot, f.place = s, len(s.flights)
	s.flights = append(s.flights, f)
}

// land forgets a flight.
func (s *slot) land(f *flight) {
	last := len(s.flights) - 1
	s.flights[f.place] = s.flights[last]
	s.flights[f.place].place = f.place
	s.flights[last] = nil
	s.flights = s.flights[:last]
	s.tidy()
}

// tidy stops the timer of a slot that nobody needs.
func (s *slot) tidy() {
	if !s.past || len(s.flights) > 0 {
		return
	}
	if s.silence != nil {
		s.silence()
	}
	s.cancel()
}

// with is the slot's context with the values of a caller's.
func (s *slot) with(values context.Context) context.Context {
	if values == context.Background() {
		return s.ctx
	}
	return valued{s.ctx, values}
}

// valued is a context that ends with one context and has the values of another one too.
type valued struct {
	context.Context
	values context.Context
}

// Value asks the context that ends first, so that contexts derived from this one find its end.
func (v valued) Value(key any) any {
	if own := v.Context.Value(key); own != nil {
		return own
	}
	return v.values.Value(key)
}
