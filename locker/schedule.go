package locker

import (
	"container/heap"
	"iter"
	"slices"
	"sync/atomic"
	"time"
)

// schedule orders holds by the time at which the keeper must look at each hold. Holds whose time is
// near are in a heap. All other holds are kept, without an order, in slots of 17 ms each, until the
// time of their slot is near. The slots save work, because each renewal moves its hold twice in
// the schedule, and moves in a large heap are slow. In a heap of a hundred thousand holds, each
// move reads distant memory at each level.
type schedule struct {
	nearHolds    nearby
	farHolds     map[int64][]*hold // the holds outside nearHolds, by the number of their slot
	farSlots     []int64           // the slots in farHolds, the earliest first
	firstFarSlot int64             // the holds of all earlier slots are in nearHolds
}

// slotOf returns the number of the slot to which the time t belongs.
func slotOf(t instant) int64 { return int64(t) >> slotBits }

// add puts h into the schedule.
func (s *schedule) add(h *hold) {
	at := h.renewal.lookTime()
	if h.renewal.slot = slotOf(at); h.renewal.slot < s.firstFarSlot {
		s.nearHolds.push(entry{at, h})
		return
	}
	if s.farHolds == nil {
		s.farHolds = make(map[int64][]*hold)
	}
	others, known := s.farHolds[h.renewal.slot]
	if !known {
		// Most slots are new at the end: a renewal moves its hold to later than most others.
		if i, left := slices.BinarySearch(s.farSlots, h.renewal.slot); !left {
			s.farSlots = slices.Insert(s.farSlots, i, h.renewal.slot)
		}
	}
	s.farHolds[h.renewal.slot] = append(others, h)
	h.renewal.index = int32(len(others) + 1)
}

// remove takes h out of the schedule.
func (s *schedule) remove(h *hold) {
	if h.renewal.slot < s.firstFarSlot {
		heap.Remove(&s.nearHolds, int(h.renewal.index)-1)
		return
	}
	others := s.farHolds[h.renewal.slot]
	last := len(others) - 1
	others[h.renewal.index-1] = others[last]
	others[h.renewal.index-1].renewal.index = h.renewal.index
	others[last] = nil
	if s.farHolds[h.renewal.slot] = others[:last]; last == 0 { // its number stays in farSlots until its time
		delete(s.farHolds, h.renewal.slot)
	}
	h.renewal.index = 0
}

// reschedule puts h into its place after its times changed.
func (s *schedule) reschedule(h *hold) {
	s.remove(h)
	s.add(h)
}

// first returns the first hold that is due at the time now, or nil if there is none.
func (s *schedule) first(now instant) *hold {
	for len(s.farSlots) > 0 && s.farSlots[0] <= slotOf(now) {
		slot := s.farSlots[0]
		s.farSlots = s.farSlots[1:]
		holds := s.farHolds[slot]
		delete(s.farHolds, slot)
		s.firstFarSlot = slot + 1
		for _, h := range holds {
			s.nearHolds.push(entry{h.renewal.lookTime(), h})
		}
	}
	if len(s.nearHolds) == 0 || s.nearHolds[0].due > now {
		return nil
	}
	return s.nearHolds[0].hold
}

// earliest returns a time at which the keeper must wake up, so that it looks at no hold too late.
// It returns 0 when there is no hold.
func (s *schedule) earliest() instant {
	switch {
	case len(s.nearHolds) > 0:
		return s.nearHolds[0].due
	case len(s.farSlots) > 0:
		return max(instant(s.farSlots[0]<<slotBits), 1)
	}
	return 0
}

// holds returns all holds in the schedule, in no order.
func (s *schedule) holds() iter.Seq[*hold] {
	return func(yield func(*hold) bool) {
		for _, e := range s.nearHolds {
			if !yield(e.hold) {
				return
			}
		}
		for _, holds := range s.farHolds {
			for _, h := range holds {
				if !yield(h) {
					return
				}
			}
		}
	}
}

// nearby is the heap of the holds whose time is near. Each entry has the hold and its time,
// because a heap mostly compares times.
type nearby []entry

type entry struct {
	due  instant
	hold *hold
}

func (s nearby) Len() int           { return len(s) }
func (s nearby) Less(i, j int) bool { return s[i].due < s[j].due }
func (s nearby) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].hold.renewal.index, s[j].hold.renewal.index = int32(i+1), int32(j+1)
}

// push adds an entry. heap.Push would allocate memory for each entry.
func (s *nearby) push(e entry) {
	*s = append(*s, e)
	e.hold.renewal.index = int32(len(*s))
	heap.Fix(s, len(*s)-1)
}

// Push is for container/heap.
func (s *nearby) Push(x any) { s.push(x.(entry)) }

// Pop is for container/heap.
func (s *nearby) Pop() any {
	last := len(*s) - 1
	h := (*s)[last].hold
	(*s)[last] = entry{}
	*s = (*s)[:last]
	h.renewal.index = 0
	return h
}

// instant is a time on the monotonic clock, in ns; 0 means that there is no time. A keeper has
// several instants for each hold and compares them all the time. An instant needs one word of
// memory, and a time.Time needs three.
type instant int64

// epoch is the time from which instants count.
var epoch = time.Now()

// instantOf returns t as an instant.
func instantOf(t time.Time) instant { return instant(t.Sub(epoch)) }

// atomicInstant is an instant that is written under the keeper's mutex, and can be read without it.
type atomicInstant struct{ ns atomic.Int64 }

func (a *atomicInstant) load() instant   { return instant(a.ns.Load()) }
func (a *atomicInstant) store(i instant) { a.ns.Store(int64(i)) }

// plus returns the instant that is d after i.
func (i instant) plus(d time.Duration) instant { return i + instant(d) }

// sub returns the duration from start to i.
func (i instant) sub(start instant) time.Duration { return time.Duration(i - start) }

// time returns i as a time.Time. It calculates from the present time, because the wall clock may
// have been set since the epoch.
func (i instant) time() time.Time {
	now := time.Now()
	return now.Add(i.sub(instantOf(now)))
}
