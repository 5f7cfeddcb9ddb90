package readers

import (
	"maps"
	"slices"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// recordCall records that the owner of c has made a call, which shows that its process is alive.
func (w *watch) recordCall(c claim) { delete(w.silent, c.process) }

// doubtGrant records that the owner does not receive the answer to its acquire, although this
// acquire has granted it the key with this fence.
func (w *watch) doubtGrant(owner string, fence int) {
	if h := w.holds[owner]; h != nil && h.fence == fence {
		h.doubt = true
	}
}

// checkAcquire checks a, the answer to the acquire c. The messages of the same step were checked
// before.
func (w *watch) checkAcquire(c claim, a answer) {
	w.plain = w.plain || c.plain
	h := w.holds[c.owner]
	holds := h != nil && h.endsAt > w.now && !h.doubt
	if w.undone[c.owner] > w.now && (a.State == store.Granted || a.State == store.Busy) {
		w.violate("undone", "%s was undone, and is answered %v", c.owner, a.State)
	}
	switch a.State {
	case store.Granted:
		if w.recordGrant(c, a.Fence, w.now+c.ttl, false); w.holds[c.owner].shared {
			w.checkWriterFlag(c.owner, a)
		}
		return
	case store.Busy:
		w.checkBusy(c, a)
		if c.queue {
			w.recordWait(c)
		}
	default:
		delete(w.waits, c.owner)
	}
	if holds && a.State != store.Done && w.undone[c.owner] <= w.now {
		w.violate("promise", "%s holds until %d, it is %d, and an acquire is answered %v", c.owner, h.endsAt, w.now, a.State)
	}
}

func (w *watch) recordWait(c claim) {
	w.askedAt = w.now
	if w.waits[c.owner] != nil || w.killed[c.process] {
		return
	}
	w.mute = w.mute || c.process == noInbox
	o := &waiter{claim: c}
	for _, other := range w.waits {
		if other.mode == locker.Exclusive {
			o.writersAhead++
		}
	}
	w.waits[c.owner] = o
}

// checkBusy checks a, the answer "busy" to the acquire c. The answer is right only if another
// owner holds the key, or waits for it, in a way that excludes the caller.
func (w *watch) checkBusy(c claim, a answer) {
	until, writer := w.now, false
	for _, h := range w.live() {
		until, writer = max(until, h.endsAt), writer || !h.shared
	}
	switch {
	case w.mute:
	case until == w.now:
		w.violate("reason", "%s gets the answer busy, although no owner holds the key", c.owner)
	case a.Left > until-w.now:
		w.violate("reason", "%s gets the answer busy for %d, but the last lease ends in %d", c.owner, a.Left, until-w.now)
	case c.mode == locker.Shared && !c.plain && !writer && !w.plain && len(w.lapsed) == 0 && !w.writerWaits():
		w.violate("reason", "reader %s gets the answer busy although only readers hold the key, and no living writer waits", c.owner)
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

// checkAnnounced checks that the readers get a message when c, a writer, becomes the first
// waiter. messages has the messages of this step.
func (w *watch) checkAnnounced(c claim, a answer, messages []message) {
	if a.State != store.Busy || a.Place != 1 || !c.queue || c.plain || c.mode != locker.Exclusive || w.plain {
		return
	}
	for _, h := range w.live() {
		if h.shared && !h.kept() && !h.doubt && h.process != noInbox && !w.killed[h.process] && !slices.ContainsFunc(messages, func(m message) bool {
			return m.kind == store.EventWriter && m.owner == h.owner
		}) {
			w.violate("told", "%s waits to write, and reader %s gets no message", c.owner, h.owner)
		}
	}
}

func (w *watch) checkWriterFlag(owner string, a answer) {
	for _, o := range w.waits {
		if !a.Writer && o.mode == locker.Exclusive && o.process != noInbox && !w.lapsed[o.process] && !w.plain {
			w.violate("told", "the answer to reader %s does not say that %s waits to write", owner, o.owner)
		}
	}
}

// checkRenewal checks a, the answer to a renewal of c.
func (w *watch) checkRenewal(c claim, ttl int, a answer) {
	h := w.holds[c.owner]
	holds := h != nil && h.endsAt > w.now
	switch {
	case a.State == store.Granted && !holds && c.process == noInbox: // the owner was granted the key without a message
		delete(w.waits, c.owner)
		w.holds[c.owner] = &hold{claim: c, shared: c.mode == locker.Shared, endsAt: w.now + max(ttl, c.hand), doubt: true}
	case a.State == store.Granted && !holds:
		w.violate("promise", "%s holds nothing, and a renewal is granted", c.owner)
	case a.State == store.Granted:
		h.endsAt, h.handed = max(h.endsAt, w.now+ttl), false
		delete(w.waits, c.owner)
		if h.shared && c.phase != 0 {
			w.checkWriterFlag(c.owner, a)
			if c.phase != w.phase {
				w.violate("fences", "%s is renewed in the phase of fence %d, and that is %d", c.owner, c.phase, w.phase)
			}
		}
		w.checkAlone()
	case holds && !h.doubt:
		w.violate("promise", "%s holds until %d, it is %d, and a renewal is answered %v", c.owner, h.endsAt, w.now, a.State)
	}
}

// beforeRelease records the release of c before it is sent. It reports whether c held the key,
// and whether c waited.
func (w *watch) beforeRelease(c claim, g releaseArgs) (held, waited bool) {
	h := w.holds[c.owner]
	held = h != nil && h.endsAt > w.now && !h.doubt
	waited = w.waits[c.owner] != nil && c.process != noInbox // otherwise the waiter may have left the queue without a message
	delete(w.waits, c.owner)
	delete(w.holds, c.owner)
	// the server may have forgotten this reader, and then the release leaves an unknown reader
	// behind
	if h != nil && h.doubt {
		w.holdWithoutOwner("forgotten "+c.owner, h.shared, h.fence, h.endsAt)
	}
	if held && g.keep > 0 {
		w.holdWithoutOwner("kept "+c.owner, false, h.fence, w.now+g.keep)
	}
	if g.undo {
		w.undone[c.owner] = w.now + noteLife
	}
	w.plain = w.plain || c.plain
	return held, waited
}

// recordComplete records a release with Complete, which makes all waiters with Once leave the
// queue. A waiter without an inbox gets no message, so recordComplete removes this waiter.
func (w *watch) recordComplete() {
	maps.DeleteFunc(w.waits, func(_ string, o *waiter) bool { return o.once && o.process == noInbox })
}

func (w *watch) checkRelease(c claim, g releaseArgs, held bool, a answer) {
	if held && a.State != store.Released {
		w.violate("promise", "%s holds, and a release is answered %v", c.owner, a.State)
	}
	if a.State == store.Revoked && c.phase == 0 {
		delete(w.undone, c.owner) // while the note of a revocation exists, it replaces the tombstone
	}
	if !held && g.keep > 0 && a.State == store.Released { // the owner was granted the key without a message
		w.holdWithoutOwner("kept "+c.owner, false, w.phase, w.now+g.keep)
	}
}

// progress states which waiters a step must have served. Each value includes the demands of the
// values before it.
type progress int

const (
	nothing progress = iota
	handed           // a waiter has got a free key
	opened           // if no writer waits, the waiting readers have entered an open phase
)

// checkIdle reports a violation if the state i shows that the step has served the waiters less
// than demand states.
func (w *watch) checkIdle(i info, demand progress) {
	for _, o := range w.waits {
		switch {
		case o.process == noInbox, w.lapsed[o.process]:
		case !i.Held:
			w.violate("idle", "%s waits for a key that is free", o.owner)
		case demand < opened, !i.Shared, o.mode != locker.Shared, w.plain:
		case !w.writerWaits():
			w.violate("idle", "%s waits to read beside readers", o.owner)
		}
	}
}
