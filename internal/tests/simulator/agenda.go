package simulator

import "time"

// event is an action at a point in time. An event of a stopped process waits until the process
// continues. An event of a dead process is dropped.
type event struct {
	at    time.Duration
	order uint64 // if two events have the same time, the event with the smaller order happens first
	owner *process
	do    func()
}

// agenda is a heap of events.
type agenda []event

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.order < f.order }

func (a *agenda) push(e event) {
	h := append(*a, e)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = e
	*a = h
}

func (a *agenda) pop() event {
	h := *a
	first := h[0]
	last := h[len(h)-1]
	h[len(h)-1] = event{}
	h = h[:len(h)-1]
	*a = h
	if len(h) == 0 {
		return first
	}
	i := 0
	for {
		least := 4*i + 1
		if least >= len(h) {
			break
		}
		for c := least + 1; c < min(4*i+5, len(h)); c++ {
			if h[c].before(&h[least]) {
				least = c
			}
		}
		if !h[least].before(&last) {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = last
	return first
}
