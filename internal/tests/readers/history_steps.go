package readers

import (
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

func (h *history) acquire(o *owner) {
	l := h.watch.holds[o.owner]
	late := o.mode == locker.Shared && o.phase[theSubject] != 0 && (l == nil || l.endsAt <= h.watch.now) && h.choose(2, "late") == 1
	var want answer
	if h.model != nil {
		want = h.model.acquire(o.claimOn(theModel))
	}
	got := h.subject.acquire(o.claimOn(theSubject))
	h.log("p%d %s acquires %v for %d, queues: %v, plain: %v: %v", o.process, o.owner, o.mode, o.ttl, o.queue, o.plain, got)
	h.compare(want, got)
	h.watch.recordCall(o.claim)
	told := h.compareMessages()
	h.watch.checkAcquire(o.claim, got)
	h.watch.checkAnnounced(o.claim, got, told)
	if late {
		h.log("nobody hears that")
		h.watch.doubtGrant(o.owner, got.Fence)
	} else {
		h.recordGrant(o, want, got)
	}
	h.look(progressIf(got.State == store.Granted || got.State == store.Busy, handed))
}

// recordGrant records the fences of a grant to o: want is the answer of the model, and got is the
// answer of the subject.
func (h *history) recordGrant(o *owner, want, got answer) {
	if got.State == store.Granted {
		h.recordFences(o, want.Fence, got.Fence)
	}
}

func (h *history) recordFences(o *owner, wanted, got int) {
	o.fences = [2]int{wanted, got}
	if o.mode == locker.Shared {
		o.phase = o.fences
	}
}

func (h *history) renew(o *owner) {
	ttl := 1 + h.choose(4, "ttl")
	var want answer
	if h.model != nil {
		want = h.model.renew(o.claimOn(theModel), ttl)
	}
	got := h.subject.renew(o.claimOn(theSubject), ttl)
	h.watch.recordCall(o.claim)
	h.log("p%d %s renews for %d: %v", o.process, o.owner, ttl, got)
	h.compare(want, got)
	h.compareMessages()
	h.watch.checkRenewal(o.claimOn(theSubject), ttl, got)
	h.look(nothing)
}

func (h *history) release(o *owner) {
	g := releaseArgs{undo: h.choose(4, "undo") == 1, setsDone: o.once && h.choose(2, "done") == 1}
	if o.mode == locker.Exclusive && h.choose(6, "keep") == 1 {
		g.keep = 1 + h.choose(2, "for")
	}
	var want answer
	if h.model != nil {
		want = h.model.release(o.claimOn(theModel), g)
	}
	held, waited := h.watch.beforeRelease(o.claim, g)
	h.watch.recordCall(o.claim)
	got := h.subject.release(o.claimOn(theSubject), g)
	h.log("p%d %s releases, undo: %v, keep: %d, done: %v: %v", o.process, o.owner, g.undo, g.keep, g.setsDone, got)
	h.compare(want, got)
	if got.State == store.Released && g.setsDone {
		h.watch.recordComplete()
	}
	h.compareMessages()
	h.watch.checkRelease(o.claimOn(theSubject), g, held, got)
	by := handed
	if waited && !o.plain || got.State == store.Released && g.setsDone {
		by = opened
	}
	h.look(by)
}

func (h *history) breakHolder() {
	i := h.subject.inspect()
	fence := i.Fence
	if fence == 0 || h.choose(8, "which") == 1 {
		fence = h.recentOwner().fences[theSubject]
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
	h.watch.addLuck()
	got := h.subject.breakHolder(fence)
	h.log("break of fence %d: %v", fence, got)
	h.compare(want, got)
	if got.State == store.Released {
		h.watch.revokeAll()
	}
	h.compareMessages()
	h.look(progressIf(got.State == store.Released, handed))
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
	if h.killed[p] {
		return
	}
	h.log("p%d is killed", p)
	h.killed[p] = true
	if h.model != nil {
		h.model.kill(p)
	}
	h.subject.kill(p)
	h.watch.kill(p)
	h.startProcess()
}

func (h *history) occupy() {
	ttl := 1 + h.choose(2, "ttl")
	got := h.subject.occupy(ttl)
	if h.model != nil && h.model.occupy(ttl) != got {
		h.differ("another program takes the key: %v", got)
	}
	if h.log("another program takes the key for %d: %v", ttl, got); got {
		for _, l := range h.watch.believers() {
			h.watch.violate("alone", "another program takes the key beside %s", l.owner)
		}
		h.watch.holdWithoutOwner("program", false, 0, h.watch.now+ttl)
		h.watch.addLuck()
	}
	h.look(nothing)
}

func (h *history) evictLease() {
	h.log("the lease is evicted")
	if h.model != nil {
		h.model.evictLease()
	}
	h.subject.evictLease()
	h.watch.expireAll()
	h.look(nothing)
}

func (h *history) evictReaders() {
	h.log("who reads is evicted")
	if h.model != nil {
		h.model.evictReaders()
	}
	h.subject.evictReaders()
	h.watch.doubtReaders()
	h.look(nothing)
}
