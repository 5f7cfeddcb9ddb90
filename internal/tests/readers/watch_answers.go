package readers

import (
	"maps"
	"slices"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

// calls records that an owner has made a call, which shows that its process is alive.
func (w *watch) calls(c claim) { delete(w.stands, c.process) }

// unheard handles a grant whose message does not arrive.
func (w *watch) unheard(owner string, fence int) {
	if h := w.holds[owner]; h != nil && h.fence == fence {
		h.doubt = true
	}
}

// acquired handles the answer to an acquire. The messages of the same step were handled before.
func (w *watch) acquired(c claim, a answer) {
	w.plain = w.plain || c.plain
	h := w.holds[c.owner]
	holds := h != nil && h.until > w.now && !h.doubt
	if w.undone[c.owner] > w.now && (a.State == store.Granted || a.State == store.Busy) {
		w.breaks("undone", "%s was undone, and is answered %v", c.owner, a.State)
	}
	switch a.State {
	case store.Granted:
		if w.granted(c, a.Fence, w.now+c.ttl, false); w.holds[c.owner].shared {
			w.saysWriter(c.owner, a)
		}
		return
	case store.Busy:
		w.reason(c, a)
		if c.queue {
			w.wait(c)
		}
	default:
		delete(w.waits, c.owner)
	}
	if holds && a.State != store.Done && w.undone[c.owner] <= w.now {
		w.breaks("promise", "%s holds until %d, it is %d, and an acquire is answered %v", c.owner, h.until, w.now, a.State)
	}
}

func (w *watch) wait(c claim) {
	w.asked = w.now
	if w.waits[c.owner] != nil || w.killed[c.process] {
		return
	}
	w.mute = w.mute || c.process == noInbox
	o := &waiter{claim: c}
	for _, other := range w.waits {
		if other.mode == locker.Exclusive {
			o.ahead++
		}
	}
	w.waits[c.owner] = o
}

// reason checks an answer "busy". Such an answer is right only if another owner excludes the
// caller.
func (w *watch) reason(c claim, a answer) {
	until, writer := w.now, false
	for _, h := range w.live() {
		until, writer = max(until, h.until), writer || !h.shared
	}
	switch {
	case w.mute:
	case until == w.now:
		w.breaks("reason", "%s gets the answer busy, although no owner holds the key", c.owner)
	case a.Left > until-w.now:
		w.breaks("reason", "%s gets the answer busy for %d, but the last lease ends in %d", c.owner, a.Left, until-w.now)
	case c.mode == locker.Shared && !c.plain && !writer && !w.plain && len(w.lapsed) == 0 && !w.writerWaits():
		w.breaks("reason", "reader %s gets the answer busy although only readers hold the key, and no living writer waits", c.owner)
	}
}

func (w *watch) writerWaits() bool {
	for _, o := range w.waits {
		if o.mode == locker.Exclusive {
			return true
		}
	}
	return false
}

// announced checks that the readers get a message when the first waiter is a writer.
func (w *watch) announced(c claim, a answer, told []message) {
	if a.State != store.Busy || a.Place != 1 || !c.queue || c.plain || c.mode != locker.Exclusive || w.plain {
		return
	}
	for _, h := range w.live() {
		if h.shared && !h.kept() && !h.doubt && h.process != noInbox && !w.killed[h.process] && !slices.ContainsFunc(told, func(m message) bool {
			return m.kind == store.EventWriter && m.owner == h.owner
		}) {
			w.breaks("told", "%s waits to write, and reader %s gets no message", c.owner, h.owner)
		}
	}
}

func (w *watch) saysWriter(owner string, a answer) {
	for _, o := range w.waits {
		if !a.Writer && o.mode == locker.Exclusive && o.process != noInbox && !w.lapsed[o.process] && !w.plain {
			w.breaks("told", "the answer to reader %s does not say that %s waits to write", owner, o.owner)
		}
	}
}

// renewed handles an answer to a renewal or a downgrade.
func (w *watch) renewed(c claim, ttl int, a answer) {
	h := w.holds[c.owner]
	holds := h != nil && h.until > w.now
	switch {
	case a.State == store.Granted && !holds && c.process == noInbox: // the owner was granted the key without a message
		delete(w.waits, c.owner)
		w.holds[c.owner] = &hold{claim: c, shared: c.mode == locker.Shared, until: w.now + max(ttl, c.hand), doubt: true}
	case a.State == store.Granted && !holds:
		w.breaks("promise", "%s holds nothing, and a renewal is granted", c.owner)
	case a.State == store.Granted:
		h.until, h.handed = max(h.until, w.now+ttl), false
		delete(w.waits, c.owner)
		if h.shared && c.phase != 0 {
			w.saysWriter(c.owner, a)
			if c.phase != w.phase {
				w.breaks("fences", "%s is renewed in the phase of fence %d, and that is %d", c.owner, c.phase, w.phase)
			}
		}
		w.areAlone()
	case holds && !h.doubt:
		w.breaks("promise", "%s holds until %d, it is %d, and a renewal is answered %v", c.owner, h.until, w.now, a.State)
	}
}

// downgraded handles the answer to a downgrade.
func (w *watch) downgraded(c claim, fence int, a answer) {
	if h := w.holds[c.owner]; a.State == store.Granted && h != nil && !h.shared {
		h.shared, h.fence, w.phase = true, fence, fence
		w.lucky()
	}
	w.renewed(c, c.ttl, a)
}

// releasing is called before a release whose result the owner learns.
func (w *watch) releasing(c claim, g giving) (held, waited bool) {
	h := w.holds[c.owner]
	held = h != nil && h.until > w.now && !h.doubt
	waited = w.waits[c.owner] != nil && c.process != noInbox // otherwise the waiter may have left the queue without a message
	delete(w.waits, c.owner)
	delete(w.holds, c.owner)
	if h != nil && h.doubt { // the server does not know which reader leaves
		w.nobody("forgotten "+c.owner, h.shared, h.fence, h.until)
	}
	if held && g.keep > 0 {
		w.nobody("kept "+c.owner, h.shared, h.fence, w.now+g.keep)
	}
	if g.undo {
		w.undone[c.owner] = w.now + noteLife
	}
	w.plain = w.plain || c.plain
	return held, waited
}

// completed handles a release with Complete. Waiters with Once get a message and leave the queue.
// A waiter without an inbox leaves without a message.
func (w *watch) completed() {
	maps.DeleteFunc(w.waits, func(_ string, o *waiter) bool { return o.once && o.process == noInbox })
}

func (w *watch) released(c claim, g giving, held bool, a answer) {
	if held && a.State != store.Released {
		w.breaks("promise", "%s holds, and a release is answered %v", c.owner, a.State)
	}
	if a.State == store.Revoked && c.phase == 0 {
		delete(w.undone, c.owner) // the note of a revocation replaces the tombstone as long as the note exists
	}
	if !held && g.keep > 0 && a.State == store.Released { // the owner was granted the key without a message
		w.nobody("kept "+c.owner, c.mode == locker.Shared, w.phase, w.now+g.keep)
	}
}

// served is how much a step must have done for the waiters. Each value includes the demands of the
// values before it.
type served int

const (
	nothing  served = iota
	handed          // a waiter has got a free key
	opened          // if no writer waits, the waiting readers have entered an open phase
	admitted        // the waiting readers have entered the phase, even while a writer waits
)

// idle reports a violation if the step has done less for the waiters than the parameter by demands.
func (w *watch) idle(i info, by served) {
	for _, o := range w.waits {
		switch {
		case o.process == noInbox, w.lapsed[o.process]:
		case !i.Held:
			w.breaks("idle", "%s waits for a key that is free", o.owner)
		case by < opened, !i.Shared, o.mode != locker.Shared, w.plain:
		case by == admitted || !w.writerWaits():
			w.breaks("idle", "%s waits to read beside readers", o.owner)
		}
	}
}
