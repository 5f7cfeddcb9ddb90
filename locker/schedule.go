package locker

import (
	"container/heap"
	"maps"
	"slices"
	"time"
)

// renewal is the part of a hold that its keeper's mutex guards.
type renewal struct {
	lease    *Lease          // who uses the hold; nil while it is passed on, and before the first
	sharers  map[*Lease]bool // who else does
	each     time.Duration   // what a renewal asks for
	longest  time.Duration   // the longest ever asked for: after it the server has surely forgotten the lease
	until    time.Time       // AtMost; zero: no bound
	deadline time.Time       // local, conservative: the hold is over then
	final    bool            // no further renewal is intended
	handed   time.Duration   // > 0: handed over by message for that long, to be confirmed by the first renewal
	renew    time.Time       // when the next renewal is due, if not final
	due      time.Time       // when it was due for the first time, if it was repeated
	index    int             // in the schedule, 1-based; 0: not in it
	failure  error           // of the last renewal attempt
	pending  bool            // for a sender
	adaptive bool            // each is the Engine's to choose
	joinable bool            // it was delegated, so it is not passed on
}

// use makes l a user of the hold.
func (r *renewal) use(l *Lease) {
	switch {
	case r.lease == nil:
		r.lease = l
	case r.sharers == nil:
		r.sharers = map[*Lease]bool{l: true}
	default:
		r.sharers[l] = true
	}
}

func (r *renewal) usedBy(l *Lease) bool { return r.lease == l || r.sharers[l] }

// leases are all who use the hold.
func (r *renewal) leases() []*Lease {
	var all []*Lease
	if r.lease != nil {
		all = append(all, r.lease)
	}
	return slices.AppendSeq(all, maps.Keys(r.sharers))
}

// at is when the keeper must look at the hold.
func (r *renewal) at() time.Time {
	if (!r.final || r.handed > 0) && r.renew.Before(r.deadline) {
		return r.renew
	}
	return r.deadline
}

// schedule is a heap of holds by the time at which each must be looked at. The times stand in it, and not only in the holds,
// because comparing them is most of the keeper's work when there are many.
type schedule []entry

type entry struct {
	at   time.Time
	hold *hold
}

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].at.Before(s[j].at) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].hold.index, s[j].hold.index = i+1, j+1
}

// Push is for container/heap.
func (s *schedule) Push(x any) {
	h := x.(*hold)
	*s = append(*s, entry{h.at(), h})
	h.index = len(*s)
}

// Pop is for container/heap.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	h := (*s)[last].hold
	(*s)[last] = entry{}
	*s = (*s)[:last]
	h.index = 0
	return h
}

// fix puts h into its place after its times changed.
func (s *schedule) fix(h *hold) {
	(*s)[h.index-1].at = h.at()
	heap.Fix(s, h.index-1)
}
