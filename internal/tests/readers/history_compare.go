package readers

import (
	"fmt"
	"slices"

	"github.com/latchkit/latchkit/locker/store"
)

const theModel, theSubject = 0, 1

// mail returns the messages of the last step. It compares them with the model's messages.
func (h *history) mail() []message {
	var want []message
	if h.model != nil {
		want = h.model.said(nil)
	}
	got := h.subject.said(want)
	for _, m := range got {
		// EventDone messages may come in any order, because their waiters have left the queue
		// before the next waiter was served.
		if m.kind == store.EventDone {
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

// compare fails the history if the subject's answer differs from the model's.
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

// differ keeps only the first difference, because all later differences follow from it.
func (h *history) differ(format string, args ...any) {
	if h.differs == "" {
		h.differs = fmt.Sprintf(format, args...)
	}
}

// same reports whether a fence of the model corresponds to a fence of the subject. Each grant has
// its own fences. Both fences must have the same offset from the first fence of their grant.
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

// look inspects the key after a step, and compares the results.
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
