package readers

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/latchkit/latchkit/locker"
)

// watch checks the invariants. It uses only what callers know: their calls, the answers, and the
// messages. It does not look at the queue or the scripts.
type watch struct {
	now    int
	holds  map[string]*hold
	waits  map[string]*waiter
	undone map[string]int // for each owner that was undone: the time until which its acquires must fail
	asked  int            // the time at which any owner last asked in order to wait
	top    int            // the largest fence that was granted or reserved
	phase  int            // the fence of the last phase, 0 after a writer
	began  int            // the fence of the phase that this step has begun
	plain  bool           // a Locker without readers took part in the history; such a Locker does not know phases
	mute   bool           // an owner that gets no messages has waited, so there may be holds that the watch does not know
	lapsed map[int]bool   // processes that did not confirm a grant by message, so the server may treat them as dead at any time
	killed map[int]bool
	stands map[int]bool // processes that have not called since their last grant by message

	broken []violation
}

// hold is a grant to an owner.
type hold struct {
	claim
	shared bool
	fence  int
	until  int
	doubt  bool // the server may have forgotten the hold, or the hold may still exclude other owners and its owner may get messages
	handed bool // the key was granted by message, and the owner has not called since
}

// waiter is an owner that got the answer "busy".
type waiter struct {
	claim
	ahead   int // how many writers were waiting when this owner began to wait
	phases  int // how many phases have begun since this owner began to wait
	writers int // how many writers have been granted the key since this owner began to wait
	luck    int // how many revocations, downgrades and expiries there were; after each of them, the first entry of the queue decides which waiters are next
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

// live returns the holds whose time is not over yet.
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
	if w.asked+queueLife <= w.now { // the queue has expired, together with the entry of the owner that was handed the key
		clear(w.waits)
		clear(w.stands)
		for _, h := range w.holds {
			h.handed = false
		}
	}
	w.lucky()
}

// over handles a hold that has ended without a release.
func (w *watch) over(owner string, h *hold) {
	delete(w.holds, owner)
	if !h.handed || h.shared && !w.plain { // a reader that has entered together with others is no longer in the queue
		return
	}
	w.lapsed[h.process], w.stands[h.process] = true, h.process != noInbox && !h.shared
	for waiting, other := range w.waits { // the server treats the process as dead, so all its waiters have lost their places without a message
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

// lost handles an eviction of the readers of a phase.
func (w *watch) lost() {
	for _, h := range w.live() {
		h.doubt = h.doubt || h.shared
	}
	w.lucky()
}

// emptied handles an eviction of the lease. Other callers may now get the key.
func (w *watch) emptied() {
	for _, h := range w.live() {
		w.over(h.owner, h)
	}
	w.lucky()
}

// thrown handles a revocation. It ends all holds, as an eviction of the lease does. But after a
// revocation, an owner that was granted the key by message counts as confirmed.
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

// granted is called for every grant. byMessage says whether the grant came by message or by an
// answer.
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

// enters handles a reader that enters an open phase.
func (w *watch) enters(c claim) {
	for _, o := range w.waits {
		if o.mode == locker.Exclusive && o.luck == 0 && len(w.lapsed) == 0 && !w.plain {
			w.breaks("fair", "%s enters the phase while %s waits to write", c.owner, o.owner)
		}
	}
}

// overtakes checks that a newcomer is not granted the key while other callers wait.
func (w *watch) overtakes(c claim, waited bool) {
	for _, o := range w.waits {
		if !waited && !w.plain && !w.mute && len(w.lapsed) == 0 && !w.killed[c.process] {
			w.breaks("fair", "%s does not wait, and is granted the key before %s", c.owner, o.owner)
		}
	}
}

// begins handles the beginning of a phase or of a writer's hold.
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
		case w.plain, w.mute, len(w.lapsed) > 0: // the waiter may also have missed its turn
		case o.mode == locker.Shared && o.writers > most:
			w.breaks("fair", "reader %s waits for %d writers", o.owner, o.writers)
		case o.mode == locker.Exclusive && (o.phases > o.ahead+most || o.writers > o.ahead+o.luck):
			w.breaks("fair", "writer %s waits for %d phases and %d writers, and %d writers were before it", o.owner, o.phases, o.writers, o.ahead)
		}
	}
}

// believe returns the holds of living owners that believe that they hold the key. It also returns
// the holds of kept keys.
func (w *watch) believe() []*hold {
	return slices.DeleteFunc(w.live(), func(h *hold) bool {
		return h.kept() && !strings.HasPrefix(h.owner, "kept") || w.killed[h.process]
	})
}

// areAlone checks that no other owner holds the key while a writer holds it.
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

// foreignMode is the mode of holds without an owner: of a kept key, or of a foreign program.
const foreignMode = locker.Mode(9)

func (h *hold) kept() bool { return h.mode == foreignMode }

func (w *watch) nobody(name string, shared bool, fence, until int) {
	if before := w.holds[name]; before != nil && before.fence == fence {
		until = max(until, before.until)
	}
	w.holds[name] = &hold{claim: claim{owner: name, process: noInbox, mode: foreignMode}, shared: shared, fence: fence, until: until}
}
