package readers

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

// watch reports what must never happen. It sees the calls, the answers and the messages of callers.
// It knows no queue and no script.
type watch struct {
	now    int
	holds  map[string]*hold
	waits  map[string]*waiter
	undone map[string]int // until when
	asked  int            // when an owner last asked to wait
	top    int            // the largest fence that was granted or reserved
	phase  int            // the fence of the last phase, 0 after a writer
	began  int            // of the phase that this step has begun
	plain  bool           // a Locker without readers took part: it keeps no phases
	mute   bool           // an owner without messages has waited, so there may be unknown holds
	lapsed map[int]bool   // a process that was granted the key, and let it lapse: it may be taken for dead at any time
	killed map[int]bool
	stands map[int]bool // and has not called since

	broken []violation
}

// hold is a grant to an owner.
type hold struct {
	claim
	shared bool
	fence  int
	until  int
	doubt  bool // the server lost it, or it was revoked: it may still exclude others, and may receive the news
	handed bool // by message, and without a call since
}

// waiter is an owner that got the answer "busy".
type waiter struct {
	claim
	ahead   int // writers
	phases  int // that began since
	writers int // that were granted the key since
	luck    int // breaks, downgrades, and leases that ran out: then the first in the queue decides
}

type violation struct{ invariant, text string }

func newWatch() *watch {
	return &watch{
		holds: make(map[string]*hold), waits: make(map[string]*waiter), undone: make(map[string]int), killed: make(map[int]bool),
		lapsed: make(map[int]bool), stands: make(map[int]bool),
	}
}

func (w *watch) breaks(invariant, format string, args ...any) {
	w.broken = append(w.broken, violation{invariant, fmt.Sprintf(format, args...)})
}

// live are the holds whose time is not over.
func (w *watch) live() []*hold {
	var live []*hold
	for _, owner := range slices.Sorted(maps.Keys(w.holds)) {
		if h := w.holds[owner]; h.until > w.now {
			live = append(live, h)
		}
	}
	return live
}

// pass lets time pass.
func (w *watch) pass(units int) {
	w.now += units
	for owner, h := range w.holds {
		if h.until > w.now {
			continue
		}
		w.over(owner, h)
	}
	if w.asked+queueLife <= w.now { // the queue is forgotten, and with it the owner that was handed the key
		clear(w.waits)
		clear(w.stands)
		for _, h := range w.holds {
			h.handed = false
		}
	}
	w.lucky()
}

// over is the end of a hold that was not released.
func (w *watch) over(owner string, h *hold) {
	delete(w.holds, owner)
	if !h.handed || h.shared && !w.plain { // a reader that entered with others has left the queue
		return
	}
	w.lapsed[h.process], w.stands[h.process] = true, h.process != noInbox && !h.shared
	for waiting, other := range w.waits { // its process is taken for dead, and loses its places, which it does not know
		if waiting == owner || h.process != noInbox && other.process == h.process {
			delete(w.waits, waiting)
		}
	}
}

func (w *watch) lucky() {
	for _, o := range w.waits {
		o.luck++
	}
}

// lost is what an eviction removes: the lease, or its readers.
func (w *watch) lost() {
	for _, h := range w.live() {
		h.doubt = h.doubt || h.shared
	}
	w.lucky()
}

// emptied is an eviction of the lease: nothing keeps others out any more.
func (w *watch) emptied() {
	for _, h := range w.live() {
		w.over(h.owner, h)
	}
	w.lucky()
}

// thrown is a revocation: the same, but an owner that was granted the key by message counts as
// confirmed.
func (w *watch) thrown() {
	for _, h := range w.live() {
		delete(w.holds, h.owner)
	}
}

func (w *watch) kill(process int) {
	w.killed[process] = true
	for owner, o := range w.waits {
		if o.process == process {
			delete(w.waits, owner)
		}
	}
}

// granted is called for every grant, by answer or by message.
func (w *watch) granted(c claim, fence, until int, byMessage bool) {
	waited := w.waits[c.owner] != nil
	together := waited && (w.began == fence || c.process == noInbox)
	delete(w.waits, c.owner)
	if h := w.holds[c.owner]; h != nil && h.until > w.now && (!h.doubt || h.fence == fence) {
		if fence != h.fence {
			w.breaks("fences", "%s has fence %d, and is told %d", c.owner, h.fence, fence)
		}
		if h.doubt {
			w.nobody("forgotten "+c.owner, h.shared, fence, h.until)
			h.until = until
		}
		h.until, h.handed, h.doubt = max(h.until, until), h.handed && byMessage, false
		return
	}
	h := &hold{claim: c, shared: c.mode == locker.Shared, fence: fence, until: until, handed: byMessage}
	joins := false
	if h.shared {
		for _, other := range w.live() {
			if other.shared && !other.doubt && other.fence != fence && other.mode != foreignMode {
				w.breaks("fences", "%s reads with fence %d beside %s with %d", c.owner, fence, other.owner, other.fence)
			}
			joins = joins || other.shared && other.fence == fence
		}
	}
	switch {
	case (joins || w.mute) && fence == w.phase:
		if !together {
			w.enters(c)
		}
	case fence <= w.top:
		w.breaks("fences", "%s is granted fence %d after %d", c.owner, fence, w.top)
	default:
		w.begins(h)
		w.overtakes(c, waited)
	}
	if byMessage && w.stands[c.process] {
		w.breaks("dead", "%s is granted the key, and its process let one lapse and was not heard of since", c.owner)
	}
	w.holds[c.owner] = h
	w.areAlone()
}

// enters is a reader that comes into a phase which is on.
func (w *watch) enters(c claim) {
	for _, o := range w.waits {
		if o.mode == locker.Exclusive && o.luck == 0 && len(w.lapsed) == 0 && !w.plain {
			w.breaks("fair", "%s enters the phase while %s waits to write", c.owner, o.owner)
		}
	}
}

// overtakes wants that no owner that has not waited is granted the key while others wait.
func (w *watch) overtakes(c claim, waited bool) {
	for _, o := range w.waits {
		if !waited && !w.plain && !w.mute && len(w.lapsed) == 0 && !w.killed[c.process] {
			w.breaks("fair", "%s does not wait, and is granted the key before %s", c.owner, o.owner)
		}
	}
}

// begins is a phase, or a writer.
func (w *watch) begins(h *hold) {
	w.top, w.phase = h.fence, 0
	if h.shared {
		w.phase, w.began = h.fence, h.fence
	} else {
		w.top += blockOf - 1
	}
	for _, o := range w.waits {
		if h.shared {
			o.phases++
		} else {
			o.writers++
		}
		most := 1 + o.luck
		switch {
		case w.plain, w.mute, len(w.lapsed) > 0: // or it has had its turn, and did not notice
		case o.mode == locker.Shared && o.writers > most:
			w.breaks("fair", "reader %s waits for %d writers", o.owner, o.writers)
		case o.mode == locker.Exclusive && (o.phases > o.ahead+most || o.writers > o.ahead+o.luck):
			w.breaks("fair", "writer %s waits for %d phases and %d writers, and %d writers were before it", o.owner, o.phases, o.writers, o.ahead)
		}
	}
}

// believe are the owners that believe to hold the key, and the owners of a kept key.
func (w *watch) believe() []*hold {
	return slices.DeleteFunc(w.live(), func(h *hold) bool {
		return h.kept() && !strings.HasPrefix(h.owner, "kept") || w.killed[h.process]
	})
}

// areAlone wants a writer to be.
func (w *watch) areAlone() {
	believe := w.believe()
	for i, h := range believe {
		for _, other := range believe[:i] {
			if !h.shared || !other.shared {
				w.breaks("alone", "%s (fence %d) holds beside %s (fence %d)", h.owner, h.fence, other.owner, other.fence)
			}
		}
	}
}

// Holds without an owner: a kept key, a foreign program.
const foreignMode = locker.Mode(9)

func (h *hold) kept() bool { return h.mode == foreignMode }

func (w *watch) nobody(name string, shared bool, fence, until int) {
	if before := w.holds[name]; before != nil && before.fence == fence {
		until = max(until, before.until)
	}
	w.holds[name] = &hold{claim: claim{owner: name, process: noInbox, mode: foreignMode}, shared: shared, fence: fence, until: until}
}

// calls is a sign of life.
func (w *watch) calls(c claim) { delete(w.stands, c.process) }

// unheard is a grant whose message does not arrive.
func (w *watch) unheard(owner string, fence int) {
	if h := w.holds[owner]; h != nil && h.fence == fence {
		h.doubt = true
	}
}

// acquired is an answer to an acquire; the messages that came with it were seen before.
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

// reason wants a reason for each answer "busy": another owner must be in the way.
func (w *watch) reason(c claim, a answer) {
	until, writer := w.now, false
	for _, h := range w.live() {
		until, writer = max(until, h.until), writer || !h.shared
	}
	switch {
	case w.mute:
	case until == w.now:
		w.breaks("reason", "%s is told to wait, and for nobody", c.owner)
	case a.Left > until-w.now:
		w.breaks("reason", "%s is told to wait for %d, and the last of all ends in %d", c.owner, a.Left, until-w.now)
	case c.mode == locker.Shared && !c.plain && !writer && !w.plain && len(w.lapsed) == 0 && !w.writerWaits():
		w.breaks("reason", "reader %s is told to wait for readers, and no writer waits who lives", c.owner)
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

// announced wants the readers to be notified of a writer that is the first waiter.
func (w *watch) announced(c claim, a answer, told []message) {
	if a.State != store.Busy || a.Place != 1 || !c.queue || c.plain || c.mode != locker.Exclusive || w.plain {
		return
	}
	for _, h := range w.live() {
		if h.shared && !h.kept() && !h.doubt && h.process != noInbox && !w.killed[h.process] && !slices.ContainsFunc(told, func(m message) bool {
			return m.kind == store.EventWriter && m.owner == h.owner
		}) {
			w.breaks("told", "%s waits to write, and reader %s is not told", c.owner, h.owner)
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

// renewed is an answer to a renewal or a downgrade.
func (w *watch) renewed(c claim, ttl int, a answer) {
	h := w.holds[c.owner]
	holds := h != nil && h.until > w.now
	switch {
	case a.State == store.Granted && !holds && c.process == noInbox: // it was granted the key without a message
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

// downgraded is an answer to a downgrade.
func (w *watch) downgraded(c claim, fence int, a answer) {
	if h := w.holds[c.owner]; a.State == store.Granted && h != nil && !h.shared {
		h.shared, h.fence, w.phase = true, fence, fence
		w.lucky()
	}
	w.renewed(c, c.ttl, a)
}

// releasing is called before a release, of which the owner knows that it has ended.
func (w *watch) releasing(c claim, g giving) (held, waited bool) {
	h := w.holds[c.owner]
	held = h != nil && h.until > w.now && !h.doubt
	waited = w.waits[c.owner] != nil && c.process != noInbox // otherwise it may have left the queue without a message
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

// completed is a release with Complete: waiters with Once are notified and leave, but a waiter
// without an inbox gets no message.
func (w *watch) completed() {
	maps.DeleteFunc(w.waits, func(_ string, o *waiter) bool { return o.once && o.process == noInbox })
}

func (w *watch) released(c claim, g giving, held bool, a answer) {
	if held && a.State != store.Released {
		w.breaks("promise", "%s holds, and a release is answered %v", c.owner, a.State)
	}
	if a.State == store.Revoked && c.phase == 0 {
		delete(w.undone, c.owner) // the note of the break stands for it, for as long as that does
	}
	if !held && g.keep > 0 && a.State == store.Released { // it was granted the key without a message
		w.nobody("kept "+c.owner, c.mode == locker.Shared, w.phase, w.now+g.keep)
	}
}

// served checks what a step should have done for the waiters.
type served int

const (
	nothing  served = iota
	handed          // a free key is granted to a waiter
	opened          // and so is a phase, to readers, if no writer waits
	admitted        // or even then
)

// idle wants the waiters to be served.
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
