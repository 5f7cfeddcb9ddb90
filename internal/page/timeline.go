package page

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"
)

// Event is something that has happened to the key of a lane.
type Event struct {
	Seq   int64  `json:"seq"`
	At    int64  `json:"at"` // in milliseconds; 0: now
	Lane  string `json:"lane"`
	Who   string `json:"who,omitempty"`
	Kind  Kind   `json:"kind"`
	Fence uint64 `json:"fence,omitempty,string"` // a number of JavaScript has too few digits
	Text  string `json:"text,omitempty"`
	N     int    `json:"n,omitempty"`
}

// Kind says what an event is.
type Kind string

// The events that begin a bar of Who; Free ends it. Stale begins the work of a holder that has lost
// its lease.
const (
	Wait  Kind = "wait"
	Hold  Kind = "hold"
	Stale Kind = "stale"
	Free  Kind = "free"
)

// The events that are a mark on a lane, and have a line in the log. Queue is N waiters that are not
// on the page one by one.
const (
	Renew   Kind = "renew"
	Handoff Kind = "handoff"
	Lost    Kind = "lost"
	Refused Kind = "refused"
	Write   Kind = "write"
	Harm    Kind = "harm"
	Pause   Kind = "pause"
	Resume  Kind = "resume"
	Kill    Kind = "kill"
	Queue   Kind = "queue"
)

// A browser draws a few hundred events a second smoothly. Further events are counted, and the page
// says how many. What a visitor waits for, such as a refusal, has a budget of its own.
const (
	drawn   = 120 // bars and small marks a second
	rare    = 60  // losses, refusals, pauses and kills a second
	history = 4000
	frames  = 200 * time.Millisecond
	viewers = 32
)

// bar is the place of one participant on a lane.
type bar struct{ lane, who string }

// timeline keeps the events that are drawn. It is guarded by the mutex of its Page.
type timeline struct {
	events []Event
	seq    int64
	open   map[bar]Event // what began each bar that has no end yet
	epoch  int64         // grows with clear

	second             int64 // of the budgets
	drawnNow, rareNow  int
	seen, left         int64 // events in all, and those that are not drawn
	leftNow, seenNow   int64 // in this second
	leftThen, seenThen int64 // in the last full second
}

func (t *timeline) clear() {
	t.events, t.seen, t.left = nil, 0, 0
	t.leftNow, t.seenNow, t.leftThen, t.seenThen = 0, 0, 0, 0
	clear(t.open)
	t.epoch++
}

// Add shows an event.
func (p *Page) Add(e Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(e, time.Now())
}

func (t *timeline) add(e Event, now time.Time) {
	t.turn(now)
	t.seen++
	t.seenNow++
	if e.At == 0 {
		e.At = now.UnixMilli()
	}
	if !t.admit(e) {
		t.left++
		t.leftNow++
		return
	}
	t.seq++
	e.Seq = t.seq
	switch b := (bar{e.Lane, e.Who}); e.Kind {
	case Wait, Hold, Stale, Queue:
		t.open[b] = e
	case Free, Kill:
		delete(t.open, b)
	default: // a mark on a bar
	}
	if t.events = append(t.events, e); len(t.events) > 2*history {
		t.events = slices.Clone(t.events[history:])
	}
}

// turn gives the events of a new second new budgets.
func (t *timeline) turn(now time.Time) {
	if second := now.Unix(); second != t.second {
		t.leftThen, t.seenThen = t.leftNow, t.seenNow
		if second != t.second+1 {
			t.leftThen, t.seenThen = 0, 0
		}
		t.second, t.drawnNow, t.rareNow, t.leftNow, t.seenNow = second, 0, 0, 0, 0
	}
}

// admit reports whether e is drawn. A bar that is drawn gets its end, whatever the budget is.
func (t *timeline) admit(e Event) bool {
	_, open := t.open[bar{e.Lane, e.Who}]
	switch e.Kind {
	case Lost, Refused, Harm, Pause, Resume, Kill:
		t.rareNow++
		return t.rareNow <= rare || open && e.Kind == Kill
	case Free:
		return open
	case Hold, Stale:
		if open {
			return true
		}
	default:
	}
	t.drawnNow++
	return t.drawnNow <= drawn
}

// frame is what a browser gets at once.
type frame struct {
	Now    int64                      `json:"now"`
	Epoch  int64                      `json:"epoch"`
	Events []Event                    `json:"events,omitempty"`
	Values map[string]json.RawMessage `json:"values,omitempty"`
	Seen   int64                      `json:"seen"` // events of the last second
	Left   int64                      `json:"left"` // those of them that are not drawn
}

// cursor is what a browser has got already.
type cursor struct{ seq, version, epoch, left int64 }

// next returns what the browser has not got yet. It reports whether that is worth a message.
func (p *Page) next(c *cursor, now time.Time) (frame, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn(now)
	fresh := c.epoch != p.epoch
	if fresh {
		c.epoch, c.seq = p.epoch, 0
	}
	f := frame{Now: now.UnixMilli(), Epoch: p.epoch, Seen: p.seenThen, Left: p.leftThen, Values: map[string]json.RawMessage{}}
	from, _ := slices.BinarySearchFunc(p.events, c.seq+1, func(e Event, seq int64) int { return cmp.Compare(e.Seq, seq) })
	if c.seq == 0 && len(p.events) > 0 {
		// Bars that began before the oldest event are still open.
		f.Events = slices.SortedFunc(maps.Values(p.open), func(a, b Event) int { return cmp.Compare(a.Seq, b.Seq) })
		f.Events = slices.DeleteFunc(f.Events, func(e Event) bool { return e.Seq >= p.events[0].Seq })
	}
	f.Events = append(f.Events, p.events[from:]...)
	for name, v := range p.values {
		if v.version > c.version {
			f.Values[name] = v.json
		}
	}
	fresh = fresh || len(f.Events) > 0 || len(f.Values) > 0 || c.left != f.Left
	c.seq, c.version, c.left = p.seq, p.version, f.Left
	return f, fresh
}

// stream sends frames to a browser, as server-sent events.
func (p *Page) stream(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	full := p.viewers >= viewers
	if !full {
		p.viewers++
	}
	p.mu.Unlock()
	if full {
		http.Error(w, fmt.Sprintf("%d browsers watch already", viewers), http.StatusServiceUnavailable)
		return
	}
	defer func() { p.mu.Lock(); p.viewers--; p.mu.Unlock() }()
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	tick := time.NewTicker(frames)
	defer tick.Stop()
	c := cursor{epoch: -1}
	for beat := 0; ; beat++ {
		if f, fresh := p.next(&c, time.Now()); fresh || beat%10 == 0 {
			text, err := json.Marshal(f)
			if err != nil {
				return
			}
			// A browser that takes nothing for that long has gone.
			_ = out.SetWriteDeadline(time.Now().Add(10 * time.Second))
			if _, err := fmt.Fprintf(w, "data: %s\n\n", text); err != nil || out.Flush() != nil {
				return
			}
		}
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
}
