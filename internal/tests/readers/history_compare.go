package readers

import (
	"fmt"
	"slices"

	"github.com/latchkit/latchkit/internal/store"
)

const theModel, theSubject = 0, 1

// compareMessages returns the messages that the subject has sent in the last step. It compares
// them with the messages of the model.
func (h *history) compareMessages() []message {
	var want []message
	if h.model != nil {
		want = h.model.takeMessages(nil)
	}
	got := h.subject.takeMessages(want)
	for _, m := range got {
		// EventDone messages may come in any order, because their waiters have left the queue
		// before the next waiter was served.
		if m.kind == store.EventDone {
			delete(h.watch.waits, m.owner)
		}
	}
	for _, m := range got {
		if m.kind == store.EventGranted {
			o := h.byName[m.owner]
			i := slices.IndexFunc(want, func(w message) bool { return w.kind == m.kind && w.owner == m.owner })
			wanted := 0
			if i >= 0 {
				wanted = want[i].fence
			}
			if h.model != nil && (i < 0 || want[i].process != m.process || want[i].writer != m.writer || !h.sameFence(want[i].fence, m.fence)) {
				h.differ("p%d is told %+v, and that should be one of %+v", m.process, m, want)
			}
			h.log("p%d is told that %s has the key with fence %d, a writer waits: %v", m.process, m.owner, m.fence, m.writer)
			h.watch.recordGrant(o.claim, m.fence, h.watch.now+o.hand, true)
			h.recordFences(o, wanted, m.fence)
		}
	}
	for _, w := range want {
		if !slices.ContainsFunc(got, w.matches) {
			h.differ("p%d is not told %+v, but %+v", w.process, w, got)
		}
	}
	return got
}

// compare records a difference if got, the answer of the subject, differs from want, the answer
// of the model.
func (h *history) compare(want, got answer) {
	if h.model == nil {
		return
	}
	if want.State != got.State || want.Writer != got.Writer || want.Place != got.Place || want.Left != got.Left ||
		!h.sameFence(want.Fence, got.Fence) || !h.sameFence(want.Holder, got.Holder) {
		h.differ("the answer is %v, and should be %v", got, want)
	}
}

// differ records the first difference. Later differences are consequences of the first one, so
// it ignores them.
func (h *history) differ(format string, args ...any) {
	if h.differs == "" {
		h.differs = fmt.Sprintf(format, args...)
	}
}

// sameFence reports whether two fences correspond: want of the model, and got of the subject. Each
// grant has a block of fences on each side. Two fences correspond if they have
// the same offset in the blocks of the same grant.
func (h *history) sameFence(want, got int) bool {
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

func progressIf(cond bool, step progress) progress {
	if cond {
		return step
	}
	return nothing
}

// look inspects the key on the server after a step, and compares it with the model. The
// parameter demand states which waiters the step must have served.
func (h *history) look(demand progress) {
	got := h.subject.inspect()
	if h.model != nil {
		want := h.model.inspect()
		if fence := got.Fence; h.sameFence(want.Fence, fence) {
			want.Fence = fence
		}
		if want != got {
			h.differ("the server shows %+v, and that should be %+v; waiting: %+v", got, want, h.model.queue)
		}
	}
	if demand > nothing {
		h.watch.checkIdle(got, demand)
	}
	h.watch.checkAlone()
	h.watch.newPhase = 0
}
