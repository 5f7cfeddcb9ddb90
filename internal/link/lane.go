package link

import (
	"context"
	"time"
)

const (
	mostCalls = 128      // the largest number of calls in a flight
	mostBytes = 32 << 10 // the approximate largest size of a flight in bytes
	largeCall = 2 << 10  // the approximate size in bytes of a renewal of 50 leases
	undoCalls = 16       // the number of calls in each flight that are reserved for undos
)

// lane is a list of calls, and the flights that take these calls. The link's mutex guards all
// fields.
type lane struct {
	link    *link
	pipe    pipeliner // nil: each flight has only one call
	acked   bool      // each flight ends with a WAIT
	windows windows

	queues [classes][]*Call
	n      int // number of calls in all queues
	flying int // number of flights under way that do not hang
	usual  int // a new flight begins at once while fewer flights than this are under way
	most   int // while flights are slow, new flights begin until this many are under way

	timer *time.Timer // starts the next flight while other flights are slow
	armed bool
}

// begin starts one flight with the listed calls, if there are any.
func (ln *lane) begin(now time.Time) {
	f := &flight{lane: ln}
	if f.fill(now) {
		ln.link.owner.Pool.Start(f)
	}
}

// scheduleExtra sets a timer for the time startAt. If calls are still listed at that time, the
// flights under way are slow, and startExtra starts one more flight.
func (ln *lane) scheduleExtra(startAt time.Time) {
	if ln.armed || ln.n == 0 || ln.pipe == nil {
		return
	}
	ln.armed = true
	if d := time.Until(startAt); ln.timer == nil {
		ln.timer = time.AfterFunc(d, ln.startExtra)
	} else {
		ln.timer.Reset(d)
	}
}

func (ln *lane) startExtra() {
	l := ln.link
	l.mu.Lock()
	defer l.mu.Unlock()
	ln.armed = false
	if ln.n == 0 {
		return
	}
	now := time.Now()
	next := ln.oldestTime().Add(promptWithin)
	if !now.Before(next) {
		if ln.flying < ln.most {
			ln.begin(now)
		}
		next = now.Add(promptWithin)
	}
	ln.scheduleExtra(next)
}

// oldestTime returns the time at which the oldest listed call was listed.
func (ln *lane) oldestTime() time.Time {
	var first time.Time
	for _, q := range ln.queues {
		if len(q) > 0 && (first.IsZero() || q[0].sent.Before(first)) {
			first = q[0].sent
		}
	}
	return first
}

// takeBatch removes the calls of the next flight from the list, appends them to the slice into, and
// returns the result. It takes the calls of the most urgent class first, and in each class the
// oldest call first. A server executes all commands that it has received from one connection before
// it looks at the next connection: five renewals of 100 leases each would delay all other calls for
// a millisecond or two. So at most one large call is under way, and one more for each millisecond
// of a round trip.
func (ln *lane) takeBatch(into []*Call) []*Call {
	most, room := mostCalls, mostBytes
	if ln.pipe == nil {
		most = 1
	}
	large, mostLarge := 0, 1+int(ln.link.trips.shortest()/time.Millisecond)
	reserved := min(undoCalls, len(ln.queues[Undo]), most-1)
	for class := range ln.queues {
		if class == int(Undo) {
			reserved = 0
		}
		q, n := ln.queues[class], 0
		for n < len(q) && len(into) < most-reserved && (room > 0 || len(into) == 0) {
			c := q[n]
			size := sizeOf(c.Words)
			if size > largeCall {
				if large >= mostLarge {
					break
				}
				large++
			}
			n++
			if c.markUnderWay() { // false: the caller has left
				into = append(into, c)
				room -= size
			}
		}
		ln.n -= n
		rest := copy(q, q[n:])
		clear(q[rest:])
		ln.queues[class] = q[:rest]
	}
	return into
}

// giveUp gives up the flights of a window that has ended. The goroutine of such a flight still
// waits until the client returns. Renewals end only with the window's context: but for Extend,
// nobody waits for them, others follow anyway, and a late answer may save a lease.
func (ln *lane) giveUp(w *window) {
	l := ln.link
	l.mu.Lock()
	lost := w.flights
	w.flights = nil
	w.inUse = len(lost) > 0
	calls := make([][]*Call, len(lost))
	for i, f := range lost {
		f.givenUp, calls[i] = true, f.calls
	}
	ln.flying -= len(lost)
	l.hung += len(lost)
	if len(lost) > 0 {
		l.prompt = false
	}
	refused := l.beginFlights()
	l.mu.Unlock()
	if len(lost) > 0 {
		l.owner.reloadState()
	}
	for _, cs := range calls {
		for _, c := range cs {
			if c.Class != Renewal {
				c.end("", ErrNoAnswer)
			}
		}
	}
	context.AfterFunc(w.ctx, func() {
		for _, cs := range calls {
			for _, c := range cs {
				c.end("", ErrNoAnswer)
			}
		}
	})
	for _, c := range refused {
		c.refuse(ErrHangs)
	}
}

// beginFlights begins the flights that may begin now. When too many flights hang, no call can be
// sent. In this state, beginFlights returns the listed calls, which must be refused.
func (l *link) beginFlights() (refused []*Call) {
	now := time.Now()
	for _, lane := range []*lane{&l.plain, &l.acked} {
		if l.hung >= l.most {
			for class, q := range lane.queues {
				refused = append(refused, q...)
				lane.queues[class] = nil
			}
			lane.n = 0
		}
		for lane.n > 0 && lane.flying < lane.usual {
			lane.begin(now)
		}
	}
	return refused
}

func (ln *lane) idle() bool { return ln.n == 0 && ln.flying == 0 }

func (ln *lane) stopTimers() {
	if ln.timer != nil {
		ln.timer.Stop()
	}
	ln.windows.replacePresent()
}

// windowLength is the age of a window at which the next call starts a new window.
const windowLength = 50 * time.Millisecond

// window is the context of all calls that begin within the same 50 ms, so that one timer serves all
// these calls. The end of the context also ends a dial and a wait for a connection. The deadline of
// the context ends reads and writes, if the client's options allow this. The link's mutex guards
// all fields.
type window struct {
	ctx      context.Context
	cancel   context.CancelFunc
	end      *time.Timer // calls windows.onEnd for this window; nil: there is no onEnd
	began    time.Time
	replaced bool      // a newer window has taken its place
	flights  []*flight // flights that have not landed
	inUse    bool      // flights that were given up use the context
}

// windows makes one window after the other. When the age of a window reaches life, the window ends
// all its calls.
//
// If there is an onEnd, the window's context then lasts for connectFor more. A call over a new
// connection needs several round trips, because the connection must be set up first. If each of
// them takes a third of a second, the call is given up, but the connection serves the next calls.
// If the context ended with the calls, no connection could be made to a slow node, or by a process
// with little CPU time, and no call would ever be answered.
type windows struct {
	life    time.Duration
	onEnd   func(*window) // called when a window ends while its flights are under way; may be nil
	present *window
}

// connectFor is how much longer a flight may last than its calls.
const connectFor = 2 * time.Second

// windowAt returns the window of a call that begins at the time now, and starts a new window if the
// present window is too old.
func (ws *windows) windowAt(now time.Time) *window {
	if ws.present != nil && now.Sub(ws.present.began) < windowLength {
		return ws.present
	}
	ws.replacePresent()
	n := &window{began: now}
	end := now.Add(ws.life)
	if ws.onEnd != nil {
		n.end = time.AfterFunc(time.Until(end), func() { ws.onEnd(n) })
		end = end.Add(connectFor)
	}
	n.ctx, n.cancel = context.WithDeadline(context.Background(), end)
	ws.present = n
	return n
}

// replacePresent marks the present window as replaced. A replaced window ends when its flights have
// landed.
func (ws *windows) replacePresent() {
	if ws.present == nil {
		return
	}
	ws.present.replaced = true
	ws.present.stopIfUnused()
	ws.present = nil
}

// enter adds a flight to the window.
func (w *window) enter(f *flight) {
	f.window, f.place = w, len(w.flights)
	w.flights = append(w.flights, f)
}

// land removes a flight from the window.
func (w *window) land(f *flight) {
	last := len(w.flights) - 1
	w.flights[f.place] = w.flights[last]
	w.flights[f.place].place = f.place
	w.flights[last] = nil
	w.flights = w.flights[:last]
	w.stopIfUnused()
}

// stopIfUnused stops the timer of the window if the window was replaced and has no flights.
func (w *window) stopIfUnused() {
	if !w.replaced || len(w.flights) > 0 || w.inUse {
		return
	}
	if w.end != nil {
		w.end.Stop()
	}
	w.cancel()
}

// withValues returns the window's context together with the values of the context values.
func (w *window) withValues(values context.Context) context.Context {
	if values == context.Background() {
		return w.ctx
	}
	return valuedContext{w.ctx, values}
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
