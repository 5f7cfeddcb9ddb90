package readers

import (
	"fmt"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

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

// grants records a grant.
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
	// The watch learns of the new phase before h.mail reads the messages to the readers of this
	// phase.
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
