package readers

import (
	"fmt"
	"slices"
	"strings"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

// subject is a server with one key and some processes, which are numbered. The fences in its
// answers are its own.
type subject interface {
	acquire(claim) answer
	renew(c claim, ttl int) answer
	release(claim, giving) answer
	downgrade(c claim, fence int) answer
	breakHolder(fence int) answer
	inspect() info
	occupy(ttl int) bool // by a program that takes the key only if it is free
	lose()               // the lease is evicted
	evict()              // its readers are
	pass(units int)
	start(process int)
	kill(process int)
	said(want []message) []message // messages since the last call; it waits for the wanted messages
}

// source makes the choices of a history.
type source interface {
	choose(n int, what string) int // from 0 to n-1
}

// abilities are what not every subject has.
type abilities struct {
	plain  bool // processes without readers share the key
	evicts bool
	mute   bool // some owners receive no messages
}

// history plays steps on a subject. The model, if there is one, must answer the same; the watch
// looks on.
type history struct {
	source
	abilities
	subject subject
	model   *model
	watch   *watch
	trace   []string

	processes int
	gone      map[int]bool
	owners    []*owner
	by        map[string]*owner
	fences    map[int]int // of grants: the model's to the subject's
	differs   string      // how the subject's answer differs from the model's
}

// owner is a token.
type owner struct {
	claim
	fences [2]int // of its last grant: the model's and the subject's
	phase  [2]int
}

func newHistory(s source, sub subject, m *model, can abilities) *history {
	h := &history{
		source: s, abilities: can, subject: sub, model: m, watch: newWatch(),
		gone: make(map[int]bool), by: make(map[string]*owner), fences: make(map[int]int),
	}
	for range 3 {
		h.begin()
	}
	return h
}

func (h *history) begin() {
	h.subject.start(h.processes)
	h.processes++
}

func (h *history) log(format string, args ...any) {
	h.trace = append(h.trace, fmt.Sprintf(format, args...))
}

// steps are what may happen, by how often.
func (h *history) steps() []func() {
	steps := []func(){
		func() { h.acquire(h.newOwner()) }, func() { h.acquire(h.newOwner()) }, func() { h.acquire(h.newOwner()) },
		func() { h.acquire(h.some()) }, func() { h.acquire(h.waiting()) },
		func() { h.renew(h.some()) }, func() { h.renew(h.holder()) }, func() { h.renew(h.holder()) },
		func() { h.release(h.holder()) }, func() { h.release(h.holder()) }, func() { h.release(h.holder()) },
		func() { h.release(h.some()) }, func() { h.release(h.waiting()) },
		func() { h.downgrade(h.holder()) },
		h.breakHolder, h.pass, h.pass, h.kill, h.occupy, h.lose,
	}
	if h.evicts {
		steps = append(steps, h.evict)
	}
	return steps
}

// step makes one step, and reports whether the model and the subject differ.
func (h *history) step() (fine bool) {
	steps := h.steps()
	steps[h.choose(len(steps), "step")]()
	return h.fine()
}

func (h *history) fine() bool { return h.differs == "" && len(h.watch.broken) == 0 }

// newOwner belongs to a process that lives; a few have no inbox.
func (h *history) newOwner() *owner {
	var alive []int
	for p := range h.processes {
		if !h.gone[p] {
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
	h.by[c.owner] = o
	return o
}

// some owner of the last ones.
func (h *history) some() *owner { return h.among(h.owners[max(0, len(h.owners)-10):]) }

func (h *history) among(owners []*owner) *owner {
	if len(owners) == 0 {
		return h.newOwner()
	}
	return owners[h.choose(len(owners), "who")]
}

func (h *history) holder() *owner {
	var all []*owner
	for _, l := range h.watch.live() {
		if o := h.by[l.owner]; o != nil {
			all = append(all, o)
		}
	}
	return h.among(all)
}

func (h *history) waiting() *owner {
	var all []*owner
	for _, o := range h.owners {
		if h.watch.waits[o.owner] != nil {
			all = append(all, o)
		}
	}
	return h.among(all)
}

// of is the claim as the model's server or the subject's is asked.
func (o *owner) of(side int) claim {
	c := o.claim
	c.phase = o.phase[side]
	return c
}

const theModel, theSubject = 0, 1

func (h *history) acquire(o *owner) {
	l := h.watch.holds[o.owner]
	late := o.mode == locker.Shared && o.phase[theSubject] != 0 && (l == nil || l.until <= h.watch.now) && h.choose(2, "late") == 1
	var want answer
	if h.model != nil {
		want = h.model.acquire(o.of(theModel))
	}
	got := h.subject.acquire(o.of(theSubject))
	h.log("p%d %s acquires %v for %d, queues: %v, plain: %v: %v", o.process, o.owner, o.mode, o.ttl, o.queue, o.plain, got)
	h.compare(want, got)
	h.watch.calls(o.claim)
	told := h.mail()
	h.watch.acquired(o.claim, got)
	h.watch.announced(o.claim, got, told)
	if late {
		h.log("nobody hears that")
		h.watch.unheard(o.owner, got.Fence)
	} else {
		h.grants(o, want, got)
	}
	h.look(servedIf(got.State == store.Granted || got.State == store.Busy, handed))
}

// grants remembers what an owner was granted.
func (h *history) grants(o *owner, want, got answer) {
	if got.State == store.Granted {
		h.holdsNow(o, want.Fence, got.Fence)
	}
}

func (h *history) holdsNow(o *owner, wanted, got int) {
	o.fences = [2]int{wanted, got}
	if o.mode == locker.Shared {
		o.phase = o.fences
	}
}

func (h *history) renew(o *owner) {
	ttl := 1 + h.choose(4, "ttl")
	var want answer
	if h.model != nil {
		want = h.model.renew(o.of(theModel), ttl)
	}
	got := h.subject.renew(o.of(theSubject), ttl)
	h.watch.calls(o.claim)
	h.log("p%d %s renews for %d: %v", o.process, o.owner, ttl, got)
	h.compare(want, got)
	h.mail()
	h.watch.renewed(o.of(theSubject), ttl, got)
	h.look(nothing)
}

func (h *history) release(o *owner) {
	g := giving{undo: h.choose(4, "undo") == 1, done: o.once && h.choose(2, "done") == 1}
	if h.choose(6, "keep") == 1 {
		g.keep = 1 + h.choose(2, "for")
	}
	var next *owner
	if l := h.watch.holds[o.owner]; l != nil && !l.shared && o.mode == locker.Exclusive && g.keep == 0 && h.choose(3, "next") == 1 {
		c := o.claim
		c.owner, c.queue = fmt.Sprintf("t%d", len(h.owners)+1), true
		next = h.add(c)
		g.next = &next.claim
	}
	var want answer
	if h.model != nil {
		want = h.model.release(o.of(theModel), g)
	}
	held, waited := h.watch.releasing(o.claim, g)
	h.watch.calls(o.claim)
	got := h.subject.release(o.of(theSubject), g)
	h.log("p%d %s releases, undo: %v, keep: %d, done: %v, next: %v: %v", o.process, o.owner, g.undo, g.keep, g.done, next != nil, got)
	h.compare(want, got)
	if got.State == store.Released && g.done {
		h.watch.completed()
	}
	told := h.mail()
	h.watch.released(o.of(theSubject), g, held, got)
	if got.Next != nil {
		h.watch.acquired(next.claim, *got.Next)
		h.watch.announced(next.claim, *got.Next, told)
		if want.Next == nil {
			want.Next = &answer{}
		}
		h.grants(next, *want.Next, *got.Next)
	}
	by := handed
	if waited && !o.plain || got.State == store.Released && g.done {
		by = opened
	}
	h.look(by)
}

func (h *history) downgrade(o *owner) {
	if o.mode == locker.Shared || o.plain || o.fences[theSubject] == 0 {
		h.renew(o)
		return
	}
	n := h.choose(blockOf, "fence")
	if o.phase[theSubject] == 0 {
		o.phase = [2]int{o.fences[theModel] + n, o.fences[theSubject] + n}
	}
	var want answer
	if h.model != nil {
		want = h.model.downgrade(o.of(theModel), o.phase[theModel])
	}
	// The phase has begun when its readers are notified of it.
	before, fence := h.watch.holds[o.owner], o.phase[theSubject]
	wrote := before != nil && !before.shared
	got := h.subject.downgrade(o.of(theSubject), fence)
	h.watch.calls(o.claim)
	h.log("p%d %s downgrades: %v", o.process, o.owner, got)
	h.compare(want, got)
	if before != nil {
		h.watch.downgraded(o.of(theSubject), fence, got)
	}
	h.mail()
	h.look(servedIf(got.State == store.Granted && wrote, admitted))
}

func (h *history) breakHolder() {
	i := h.subject.inspect()
	fence := i.Fence
	if fence == 0 || h.choose(8, "which") == 1 {
		fence = h.some().fences[theSubject]
	}
	if fence == 0 || i.Foreign {
		return
	}
	var want answer
	if h.model != nil {
		of := h.model.inspect().Fence
		if fence != i.Fence {
			of = 0
			for m, s := range h.fences {
				if s == fence/eachGrant*eachGrant || s == fence {
					of = m
				}
			}
		}
		want = h.model.breakHolder(of)
	}
	h.watch.lucky()
	got := h.subject.breakHolder(fence)
	h.log("break of fence %d: %v", fence, got)
	h.compare(want, got)
	if got.State == store.Released {
		h.watch.thrown()
	}
	h.mail()
	h.look(servedIf(got.State == store.Released, handed))
}

func (h *history) pass() {
	n := 1 + h.choose(3, "units")
	h.log("%d pass", n)
	if h.model != nil {
		h.model.pass(n)
	}
	h.subject.pass(n)
	h.watch.pass(n)
	h.look(nothing)
}

func (h *history) kill() {
	p := h.choose(h.processes, "process")
	if h.gone[p] {
		return
	}
	h.log("p%d is killed", p)
	h.gone[p] = true
	if h.model != nil {
		h.model.kill(p)
	}
	h.subject.kill(p)
	h.watch.kill(p)
	h.begin()
}

func (h *history) occupy() {
	ttl := 1 + h.choose(2, "ttl")
	got := h.subject.occupy(ttl)
	if h.model != nil && h.model.occupy(ttl) != got {
		h.differ("another program takes the key: %v", got)
	}
	if h.log("another program takes the key for %d: %v", ttl, got); got {
		for _, l := range h.watch.believe() {
			h.watch.breaks("alone", "another program takes the key beside %s", l.owner)
		}
		h.watch.nobody("program", false, 0, h.watch.now+ttl)
		h.watch.lucky()
	}
	h.look(nothing)
}

func (h *history) lose() {
	h.log("the lease is evicted")
	if h.model != nil {
		h.model.lose()
	}
	h.subject.lose()
	h.watch.emptied()
	h.look(nothing)
}

func (h *history) evict() {
	h.log("who reads is evicted")
	if h.model != nil {
		h.model.evict()
	}
	h.subject.evict()
	h.watch.lost()
	h.look(nothing)
}

// mail takes the messages of the last step.
func (h *history) mail() []message {
	var want []message
	if h.model != nil {
		want = h.model.said(nil)
	}
	got := h.subject.said(want)
	for _, m := range got {
		if m.kind == store.EventDone { // in whichever order they come: these have left before anybody was served
			delete(h.watch.waits, m.owner)
		}
	}
	for _, m := range got {
		if m.kind == store.EventGranted {
			o := h.by[m.owner]
			i := slices.IndexFunc(want, func(w message) bool { return w.kind == m.kind && w.owner == m.owner })
			wanted := 0
			if i >= 0 {
				wanted = want[i].fence
			}
			if h.model != nil && (i < 0 || want[i].process != m.process || want[i].writer != m.writer || !h.same(want[i].fence, m.fence)) {
				h.differ("p%d is told %+v, and that should be one of %+v", m.process, m, want)
			}
			h.log("p%d is told that %s has the key with fence %d, a writer waits: %v", m.process, m.owner, m.fence, m.writer)
			h.watch.granted(o.claim, m.fence, h.watch.now+o.hand, true)
			h.holdsNow(o, wanted, m.fence)
		}
	}
	for _, w := range want {
		if !slices.ContainsFunc(got, w.answers) {
			h.differ("p%d is not told %+v, but %+v", w.process, w, got)
		}
	}
	return got
}

// compare wants the subject to answer as the model does.
func (h *history) compare(want, got answer) {
	if h.model == nil {
		return
	}
	next := want.Next
	if want.Next != nil && got.Next != nil {
		h.compare(*want.Next, *got.Next)
	}
	if want.State != got.State || want.Writer != got.Writer || want.Place != got.Place || want.Left != got.Left ||
		(want.Next == nil) != (got.Next == nil) || !h.same(want.Fence, got.Fence) || !h.same(want.Holder, got.Holder) {
		want.Next = next
		h.differ("the answer is %v, and should be %v", got, want)
	}
}

// differ keeps the first difference: the next ones follow from it.
func (h *history) differ(format string, args ...any) {
	if h.differs == "" {
		h.differs = fmt.Sprintf(format, args...)
	}
}

// same reports whether a fence of the model is the subject's: the offset in a grant is, and each
// grant has its own.
func (h *history) same(want, got int) bool {
	if want == 0 || got == 0 {
		return want == got
	}
	offset := want % eachGrant
	grant := want - offset
	if known, ok := h.fences[grant]; ok {
		return known == got-offset
	}
	h.fences[grant] = got - offset
	return true
}

func servedIf(it bool, by served) served {
	if it {
		return by
	}
	return nothing
}

// look compares what inspection shows after a step.
func (h *history) look(by served) {
	got := h.subject.inspect()
	if h.model != nil {
		want := h.model.inspect()
		if fence := got.Fence; h.same(want.Fence, fence) {
			want.Fence = fence
		}
		if want != got {
			h.differ("the server shows %+v, and that should be %+v; waiting: %+v", got, want, h.model.queue)
		}
	}
	if by > nothing {
		h.watch.idle(got, by)
	}
	h.watch.areAlone()
	h.watch.began = 0
}

// finish lets everybody go, one way or the other: nothing may stay.
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
		// Every waiter asks; every holder releases.
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
		h.watch.breaks("left", "%+v", i)
	}
}

// String is the history and what is wrong with it.
func (h *history) String() string {
	lines := slices.Clone(h.trace)
	for _, v := range h.watch.broken {
		lines = append(lines, v.invariant+": "+v.text)
	}
	return strings.Join(append(lines, h.differs), "\n")
}

// String describes the answer of a step.
func (a answer) String() string {
	s := a.State.String()
	switch a.State {
	case store.Busy:
		s += fmt.Sprintf(" behind fence %d for %d, place %d", a.Holder, a.Left, a.Place)
	case store.Granted:
		s += fmt.Sprintf(" with fence %d, a writer waits: %v", a.Fence, a.Writer)
	default:
	}
	if a.Next != nil {
		s += ", next: " + a.Next.String()
	}
	return s
}
