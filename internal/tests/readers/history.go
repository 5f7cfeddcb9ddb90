package readers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// subject is a server with one key and some processes. The processes have numbers. The fences
// in its answers differ from the model's fences.
type subject interface {
	acquire(claim) answer
	renew(c claim, ttl int) answer
	release(claim, releaseArgs) answer
	breakHolder(fence int) answer
	inspect() info
	occupy(ttl int) bool // another program takes the key, if it is free
	evictLease()         // the server evicts the lease
	evictReaders()       // the server evicts the list of the phase's readers
	pass(units int)
	start(process int)
	kill(process int)
	takeMessages(want []message) []message // returns the messages since its last call; first it waits for the wanted messages
}

// source makes the choices of a history.
type source interface {
	choose(n int, what string) int // chooses a number from 0 to n-1
}

// abilities are the optional abilities of a subject.
type abilities struct {
	plain  bool // processes whose Locker has no readers use the key, too
	evicts bool
	mute   bool // some owners receive no messages
}

// history plays steps on a subject. With a model, it plays the same steps on the model, and both
// must give the same answers. The watch checks the answers of the subject.
type history struct {
	source
	abilities
	subject subject
	model   *model
	watch   *watch
	trace   []string

	processes int
	killed    map[int]bool
	owners    []*owner
	byName    map[string]*owner
	fences    map[int]int // maps the fences of the model's grants to the fences of the subject's grants
	differs   string      // how the subject's answer differs from the model's
}

// owner is a token with its claim, its last fences and its last phases.
type owner struct {
	claim
	fences [2]int // the fence of its last grant: first the model's fence, then the subject's fence
	phase  [2]int
}

func newHistory(s source, sub subject, m *model, can abilities) *history {
	h := &history{
		source: s, abilities: can, subject: sub, model: m, watch: newWatch(),
		killed: make(map[int]bool), byName: make(map[string]*owner), fences: make(map[int]int),
	}
	for range 3 {
		h.startProcess()
	}
	return h
}

func (h *history) startProcess() {
	h.subject.start(h.processes)
	h.processes++
}

func (h *history) log(format string, args ...any) {
	h.trace = append(h.trace, fmt.Sprintf(format, args...))
}

// steps returns the possible steps. A frequent step is listed several times.
func (h *history) steps() []func() {
	steps := []func(){
		func() { h.acquire(h.newOwner()) }, func() { h.acquire(h.newOwner()) }, func() { h.acquire(h.newOwner()) },
		func() { h.acquire(h.recentOwner()) }, func() { h.acquire(h.anyWaiter()) },
		func() { h.renew(h.recentOwner()) }, func() { h.renew(h.anyHolder()) }, func() { h.renew(h.anyHolder()) },
		func() { h.release(h.anyHolder()) }, func() { h.release(h.anyHolder()) }, func() { h.release(h.anyHolder()) },
		func() { h.release(h.recentOwner()) }, func() { h.release(h.anyWaiter()) },
		h.breakHolder, h.pass, h.pass, h.kill, h.occupy, h.evictLease,
	}
	if h.evicts {
		steps = append(steps, h.evictReaders)
	}
	return steps
}

// step makes one random step. It returns false when a check has failed or the model and the
// subject differ.
func (h *history) step() (fine bool) {
	steps := h.steps()
	steps[h.choose(len(steps), "step")]()
	return h.fine()
}

func (h *history) fine() bool { return h.differs == "" && len(h.watch.broken) == 0 }

// newOwner makes an owner in a living process. A few owners have no inbox.
func (h *history) newOwner() *owner {
	var alive []int
	for p := range h.processes {
		if !h.killed[p] {
			alive = append(alive, p)
		}
	}
	c := claim{owner: fmt.Sprintf("t%d", len(h.owners)+1), process: alive[h.choose(len(alive), "process")]}
	if h.choose(2, "reads") == 1 {
		c.mode = locker.Shared
	}
	c.queue, c.once = h.choose(5, "queues") > 0, h.choose(8, "once") == 1
	c.ttl = 1 + h.choose(3, "ttl")
	c.hand = 1 + h.choose(min(c.ttl, 2), "hand")
	if h.mute && h.choose(8, "inbox") == 1 {
		c.process = noInbox
	}
	if h.plain && c.mode == locker.Exclusive && h.choose(6, "plain") == 1 {
		c.plain = true
	}
	return h.add(c)
}

func (h *history) add(c claim) *owner {
	o := &owner{claim: c}
	h.owners = append(h.owners, o)
	h.byName[c.owner] = o
	return o
}

// recentOwner returns one of the ten newest owners.
func (h *history) recentOwner() *owner { return h.chooseAmong(h.owners[max(0, len(h.owners)-10):]) }

func (h *history) chooseAmong(owners []*owner) *owner {
	if len(owners) == 0 {
		return h.newOwner()
	}
	return owners[h.choose(len(owners), "who")]
}

func (h *history) anyHolder() *owner {
	var all []*owner
	for _, l := range h.watch.live() {
		if o := h.byName[l.owner]; o != nil {
			all = append(all, o)
		}
	}
	return h.chooseAmong(all)
}

func (h *history) anyWaiter() *owner {
	var all []*owner
	for _, o := range h.owners {
		if h.watch.waits[o.owner] != nil {
			all = append(all, o)
		}
	}
	return h.chooseAmong(all)
}

// claimOn returns the claim of the owner on one side: theModel or theSubject. The two claims
// differ only in the fence of the phase, because each side makes its own fences.
func (o *owner) claimOn(side int) claim {
	c := o.claim
	c.phase = o.phase[side]
	return c
}

// finish ends all waits and holds, and checks that neither a lease nor a waiter is left on the
// server.
func (h *history) finish() {
	for _, o := range h.owners {
		if h.choose(3, "stays") > 0 {
			h.release(o)
		}
	}
	for range 5 {
		h.log("1 passes")
		if h.model != nil {
			h.model.pass(1)
		}
		h.subject.pass(1)
		h.watch.pass(1)
		// Every waiter asks once more, and every holder releases.
		for _, o := range h.owners {
			if h.watch.waits[o.owner] != nil {
				h.acquire(o)
			}
		}
		for _, o := range h.owners {
			if h.watch.holds[o.owner] != nil {
				h.release(o)
			}
		}
	}
	h.watch.pass(queueLife)
	h.subject.pass(queueLife)
	if i := h.subject.inspect(); i != (info{}) {
		h.watch.violate("left", "%+v", i)
	}
}

// String returns the steps of the history, the violations, and the difference from the model.
func (h *history) String() string {
	lines := slices.Clone(h.trace)
	for _, v := range h.watch.broken {
		lines = append(lines, v.invariant+": "+v.text)
	}
	return strings.Join(append(lines, h.differs), "\n")
}

// String describes the answer a as text.
func (a answer) String() string {
	s := a.State.String()
	switch a.State {
	case store.Busy:
		s += fmt.Sprintf(" behind fence %d for %d, place %d", a.Holder, a.Left, a.Place)
	case store.Granted:
		s += fmt.Sprintf(" with fence %d, a writer waits: %v", a.Fence, a.Writer)
	default:
	}
	return s
}
