package locker

import (
	"container/heap"
	"iter"
	"maps"
	"slices"
	"time"
)

// renewal is the part of a hold that its keeper's mutex guards.
type renewal struct {
	lease      *Lease          // the user of the hold, or the first of several; nil during a hand-off, and before the first use
	sharers    map[*Lease]bool // the other users
	each       time.Duration   // the TTL that a renewal asks for
	longest    time.Duration   // the longest TTL of all renewals, after which the server has forgotten the lease
	until      instant         // the end of AtMost; 0: no limit
	deadline   instant         // the local, conservative time at which the hold is over
	handed     time.Duration   // > 0: granted by message for this long; the first renewal confirms it
	renew      instant         // when the next renewal is due, unless final
	due        instant         // for a repeated renewal: when it was first due
	failure    error           // the error of the last renewal attempt
	slot       int64           // the slot in the schedule
	index      int32           // the place in that slot or in the heap, from 1; 0: not in the schedule
	unanswered int8            // the number of renewals under way
	final      bool            // the hold is not renewed any more
	adaptive   bool            // the Engine chooses the TTL in the field each
	joinable   bool            // the hold was delegated, so it is not handed over
}

// use adds l to the Leases that use the hold.
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

// leases returns all Leases that use the hold.
func (r *renewal) leases() []*Lease {
	var all []*Lease
	if r.lease != nil {
		all = append(all, r.lease)
	}
	return slices.AppendSeq(all, maps.Keys(r.sharers))
}

// at returns when the keeper must look at the hold.
func (r *renewal) at() instant {
	if !r.final || r.handed > 0 {
		return min(r.renew, r.deadline)
	}
	return r.deadline
}

// schedule orders holds by the time at which the keeper must look at each hold. Holds whose time is
// near are in a heap. All other holds are kept, without an order, in slots of 17 ms each, until the
// time of their slot is near. The slots save work, because a renewal moves a hold twice. In a heap
// of a hundred thousand holds, each move reads distant memory at each level.
type schedule struct {
	near nearby
	far  map[int64][]*hold // the holds that are not near, by slot
	next slots             // the slots in far, the earliest first
	past int64             // holds before this slot are in near
}

// slotBits is the number of bits of a slot's length: a slot is 2^24 ns long.
const slotBits = 24

func slotOf(at instant) int64 { return int64(at) >> slotBits }

// add adds h.
func (s *schedule) add(h *hold) {
	at := h.at()
	if h.slot = slotOf(at); h.slot < s.past {
		s.near.push(entry{at, h})
		return
	}
	if s.far == nil {
		s.far = make(map[int64][]*hold)
	}
	others, known := s.far[h.slot]
	if !known {
		heap.Push(&s.next, h.slot)
	}
	s.far[h.slot] = append(others, h)
	h.index = int32(len(others) + 1) //nolint:gosec // memory has no room for so many leases
}

// remove removes h.
func (s *schedule) remove(h *hold) {
	if h.slot < s.past {
		heap.Remove(&s.near, int(h.index)-1)
		return
	}
	others := s.far[h.slot]
	last := len(others) - 1
	others[h.index-1] = others[last]
	others[h.index-1].index = h.index
	others[last] = nil
	s.far[h.slot] = others[:last]
	h.index = 0
}

// fix puts h into its place after its times changed.
func (s *schedule) fix(h *hold) {
	s.remove(h)
	s.add(h)
}

// first returns the first hold that is due at now, or nil if no hold is.
func (s *schedule) first(now instant) *hold {
	for len(s.next) > 0 && s.next[0] <= slotOf(now) {
		slot := heap.Pop(&s.next).(int64) //nolint:forcetypeassert // slots contains int64 only
		holds := s.far[slot]
		delete(s.far, slot)
		s.past = slot + 1
		for _, h := range holds {
			s.near.push(entry{h.at(), h})
		}
	}
	if len(s.near) == 0 || s.near[0].at > now {
		return nil
	}
	return s.near[0].hold
}

// earliest returns a time at which the keeper must wake up, so that it looks at no hold too late.
// It returns 0 when there is no hold.
func (s *schedule) earliest() instant {
	switch {
	case len(s.near) > 0:
		return s.near[0].at
	case len(s.next) > 0:
		return max(instant(s.next[0]<<slotBits), 1)
	}
	return 0
}

// holds returns all holds in the schedule, in no order.
func (s *schedule) holds() iter.Seq[*hold] {
	return func(yield func(*hold) bool) {
		for _, e := range s.near {
			if !yield(e.hold) {
				return
			}
		}
		for _, holds := range s.far {
			for _, h := range holds {
				if !yield(h) {
					return
				}
			}
		}
	}
}

// nearby is a heap. Each entry has the hold and its time, because a heap mostly compares times.
type nearby []entry

type entry struct {
	at   instant
	hold *hold
}

func (s nearby) Len() int           { return len(s) }
func (s nearby) Less(i, j int) bool { return s[i].at < s[j].at }
func (s nearby) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].hold.index, s[j].hold.index = int32(i+1), int32(j+1) //nolint:gosec // memory has no room for so many leases
}

// push adds an entry. heap.Push would allocate memory for each entry.
func (s *nearby) push(e entry) {
	*s = append(*s, e)
	e.hold.index = int32(len(*s)) //nolint:gosec // memory has no room for so many leases
	heap.Fix(s, len(*s)-1)
}

// Push is for container/heap.
func (s *nearby) Push(x any) { s.push(x.(entry)) } //nolint:forcetypeassert // nearby contains entries only

// Pop is for container/heap.
func (s *nearby) Pop() any {
	last := len(*s) - 1
	h := (*s)[last].hold
	(*s)[last] = entry{}
	*s = (*s)[:last]
	h.index = 0
	return h
}

// slots is a heap of slot numbers.
type slots []int64

func (s slots) Len() int           { return len(s) }
func (s slots) Less(i, j int) bool { return s[i] < s[j] }
func (s slots) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }

// Push is for container/heap.
func (s *slots) Push(x any) { *s = append(*s, x.(int64)) } //nolint:forcetypeassert // slots contains int64 only

// Pop is for container/heap.
func (s *slots) Pop() any {
	last := len(*s) - 1
	slot := (*s)[last]
	*s = (*s)[:last]
	return slot
}
