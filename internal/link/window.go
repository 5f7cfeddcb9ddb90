package link

import (
	"context"
	"time"
)

// windowLength is the age of a window at which the next call starts a new window.
const windowLength = 50 * time.Millisecond

// window is the context of all calls that begin within the same 50 ms, so that one timer serves all
// these calls. The end of the context also ends a dial and a wait for a connection. The deadline of
// the context ends reads and writes, if the client's options allow this. The link's mutex guards
// all fields.
type window struct {
	ctx      context.Context
	cancel   context.CancelFunc
	silence  func() bool // prevents the call of windows.onEnd for this window
	began    time.Time
	replaced bool      // a newer window has taken its place
	flights  []*flight // flights that have not landed
}

// windows makes one window after the other. When the age of a window reaches life, the window ends
// all its calls.
type windows struct {
	life    time.Duration
	onEnd   func(*window) // called when a window ends while its flights are under way; may be nil
	present *window
}

// windowAt returns the window of a call that begins at the time now, and starts a new window if the
// present window is too old.
func (ws *windows) windowAt(now time.Time) *window {
	if ws.present != nil && now.Sub(ws.present.began) < windowLength {
		return ws.present
	}
	ws.replacePresent()
	n := &window{began: now}
	n.ctx, n.cancel = context.WithDeadline(context.Background(), now.Add(ws.life))
	if ws.onEnd != nil {
		n.silence = context.AfterFunc(n.ctx, func() { ws.onEnd(n) })
	}
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
	if !w.replaced || len(w.flights) > 0 {
		return
	}
	if w.silence != nil {
		w.silence()
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
