package readers

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/latchkit/latchkit/locker"
)

// watch checks the invariants. It knows only what callers know: their calls, the answers, and the
// messages. It does not look at the queue or the scripts.
type watch struct {
	now    int
	holds  map[string]*hold
	waits  map[string]*waiter
	undone map[string]int // for each owner that was undone: the time until which its acquires must fail
	// when an owner last sent an acquire that may queue, which keeps the queue alive
	askedAt  int
	top      int          // the largest fence that was granted or reserved
	phase    int          // the fence of the last phase, 0 after a writer
	newPhase int          // the fence of the phase that began in this step; 0: none
	plain    bool         // a Locker without readers took part in the history; such a Locker does not know phases
	mute     bool         // an owner that gets no messages has waited, so there may be holds that the watch does not know
	lapsed   map[int]bool // processes that did not confirm a grant by message, so the server may treat them as dead at any time
	killed   map[int]bool
	silent   map[int]bool // processes that have made no call since their last grant by message

	broken []violation
}

// hold is a grant of the key to an owner.
type hold struct {
	claim
	shared bool
	fence  int
	endsAt int
	doubt  bool // the hold may exist on the server or not, because its answer or its entry was lost
	handed bool // the key was granted by message, and the owner has made no call since then
}

// waiter is an owner that got the answer "busy".
type waiter struct {
	claim
	writersAhead int // how many writers were waiting when this owner began to wait
	phases       int // how many phases have begun since this owner began to wait
	writers      int // how many writers have been granted the key since this owner began to wait
	// luck counts the revocations, expiries, evictions and foreign holders during the
	// wait. After each such event, the first entry of the queue decides which waiters are next. So
	// the fairness checks allow one more turn before this waiter for each event.
	luck int
}

type violation struct{ invariant, text string }

func newWatch() *watch {
	return &watch{
		holds: make(map[string]*hold), waits: make(map[string]*waiter), undone: make(map[string]int), killed: make(map[int]bool),
		lapsed: make(map[int]bool), silent: make(map[int]bool),
	}
}

func (w *watch) violate(invariant, format string, args ...any) {
	w.broken = append(w.broken, violation{invariant, fmt.Sprintf(format, args...)})
}

// live returns the holds whose time is not over yet.
func (w *watch) live() []*hold {
	var live []*hold
	for _, owner := range slices.Sorted(maps.Keys(w.holds)) {
		if h := w.holds[owner]; h.endsAt > w.now {
			live = append(live, h)
		}
	}
	return live
}

// pass advances the time by some units.
func (w *watch) pass(units int) {
	w.now += units
	for owner, h := range w.holds {
		if h.endsAt > w.now {
			continue
		}
		w.expireHold(owner, h)
	}
	if w.askedAt+queueLife <= w.now { // the whole queue has expired, even the entry of an owner that was handed the key
		clear(w.waits)
		clear(w.silent)
		for _, h := range w.holds {
			h.handed = false
		}
	}
	w.addLuck()
}

// expireHold removes h, a hold of owner that has ended without a release.
func (w *watch) expireHold(owner string, h *hold) {
	delete(w.holds, owner)
	// not handed, or a reader that entered a phase: such an owner has no entry in the queue
	if !h.handed || h.shared && !w.plain {
		return
	}
	w.lapsed[h.process], w.silent[h.process] = true, h.process != noInbox && !h.shared
	for waiting, other := range w.waits { // the server treats the process as dead, so all its waiters have lost their places without a message
		if waiting == owner || h.process != noInbox && other.process == h.process {
			delete(w.waits, waiting)
		}
	}
}

func (w *watch) addLuck() {
	for _, o := range w.waits {
		o.luck++
	}
}

// doubtReaders records that the server has evicted the readers of the phase, so it may have
// forgotten the holds of readers.
func (w *watch) doubtReaders() {
	for _, h := range w.live() {
		h.doubt = h.doubt || h.shared
	}
	w.addLuck()
}

// expireAll records that the server has evicted the lease, so all holds end and other callers may
// get the key.
func (w *watch) expireAll() {
	for _, h := range w.live() {
		w.expireHold(h.owner, h)
	}
	w.addLuck()
}

// revokeAll records that a revocation has ended all holds. An owner that was granted the key by
// message counts as confirmed.
func (w *watch) revokeAll() {
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

// recordGrant records and checks a grant to c. byMessage reports whether the grant came by
// message or by an answer.
func (w *watch) recordGrant(c claim, fence, endsAt int, byMessage bool) {
	waited := w.waits[c.owner] != nil
	together := waited && (w.newPhase == fence || c.process == noInbox)
	delete(w.waits, c.owner)
	if h := w.holds[c.owner]; h != nil && h.endsAt > w.now && (!h.doubt || h.fence == fence) {
		if fence != h.fence {
			w.violate("fences", "%s has fence %d, and is told %d", c.owner, h.fence, fence)
		}
		if h.doubt {
			w.holdWithoutOwner("forgotten "+c.owner, h.shared, fence, h.endsAt)
			h.endsAt = endsAt
		}
		h.endsAt, h.handed, h.doubt = max(h.endsAt, endsAt), h.handed && byMessage, false
		return
	}
	h := &hold{claim: c, shared: c.mode == locker.Shared, fence: fence, endsAt: endsAt, handed: byMessage}
	joins := false
	if h.shared {
		for _, other := range w.live() {
			if other.shared && !other.doubt && other.fence != fence && other.mode != foreignMode {
				w.violate("fences", "%s reads with fence %d beside %s with %d", c.owner, fence, other.owner, other.fence)
			}
			joins = joins || other.shared && other.fence == fence
		}
	}
	switch {
	case (joins || w.mute) && fence == w.phase:
		if !together {
			w.checkEntry(c)
		}
	case fence <= w.top:
		w.violate("fences", "%s is granted fence %d after %d", c.owner, fence, w.top)
	default:
		w.recordBegin(h)
		w.checkOvertaking(c, waited)
	}
	if byMessage && w.silent[c.process] {
		w.violate("dead", "%s is granted the key, and its process let one lapse and was not heard of since", c.owner)
	}
	w.holds[c.owner] = h
	w.checkAlone()
}

// checkEntry checks that no writer was waiting when the reader c entered an open phase.
func (w *watch) checkEntry(c claim) {
	for _, o := range w.waits {
		if o.mode == locker.Exclusive && o.luck == 0 && len(w.lapsed) == 0 && !w.plain {
			w.violate("fair", "%s enters the phase while %s waits to write", c.owner, o.owner)
		}
	}
}

// checkOvertaking checks that c, if it has not waited, is not granted the key while other callers
// wait.
func (w *watch) checkOvertaking(c claim, waited bool) {
	for _, o := range w.waits {
		if !waited && !w.plain && !w.mute && len(w.lapsed) == 0 && !w.killed[c.process] {
			w.violate("fair", "%s does not wait, and is granted the key before %s", c.owner, o.owner)
		}
	}
}

// recordBegin records that the hold h of a writer, or a phase with the hold h, has begun.
func (w *watch) recordBegin(h *hold) {
	w.top, w.phase = h.fence, 0
	if h.shared {
		w.phase, w.newPhase = h.fence, h.fence
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
			w.violate("fair", "reader %s waits for %d writers", o.owner, o.writers)
		case o.mode == locker.Exclusive && (o.phases > o.writersAhead+most || o.writers > o.writersAhead+o.luck):
			w.violate("fair", "writer %s waits for %d phases and %d writers, and %d writers were before it", o.owner, o.phases, o.writers, o.writersAhead)
		}
	}
}

// believers returns the holds of living owners that must not overlap: the owner believes that
// it holds the key, or KeepFor keeps the key after a release.
func (w *watch) believers() []*hold {
	return slices.DeleteFunc(w.live(), func(h *hold) bool {
		return h.kept() && !strings.HasPrefix(h.owner, "kept") || w.killed[h.process]
	})
}

// checkAlone checks that no other owner holds the key while a writer holds it.
func (w *watch) checkAlone() {
	believe := w.believers()
	for i, h := range believe {
		for _, other := range believe[:i] {
			if !h.shared || !other.shared {
				w.violate("alone", "%s (fence %d) holds beside %s (fence %d)", h.owner, h.fence, other.owner, other.fence)
			}
		}
	}
}

// foreignMode is the mode of holds without an owner: of a kept key, or of a foreign program.
const foreignMode = locker.Mode(9)

func (h *hold) kept() bool { return h.mode == foreignMode }

func (w *watch) holdWithoutOwner(name string, shared bool, fence, endsAt int) {
	if before := w.holds[name]; before != nil && before.fence == fence {
		endsAt = max(endsAt, before.endsAt)
	}
	w.holds[name] = &hold{claim: claim{owner: name, process: noInbox, mode: foreignMode}, shared: shared, fence: fence, endsAt: endsAt}
}
