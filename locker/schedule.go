package locker

import "time"

// renewal is the part of a Lease that its keeper's mutex guards.
type renewal struct {
	ttl      time.Duration // what a renewal asks for
	longest  time.Duration // the longest ever asked for: after it the server has surely forgotten the lease
	until    time.Time     // AtMost; zero: no bound
	deadline time.Time     // local, conservative: the lease is over then
	final    bool          // no further renewal is intended
	renew    time.Time     // when the next renewal is due, if not final
	index    int           // in the schedule, 1-based; 0: not in it
	failure  error         // of the last renewal attempt
	pending  bool          // for a sender
}

// at is when the keeper must look at the lease.
func (r *renewal) at() time.Time {
	if !r.final && r.renew.Before(r.deadline) {
		return r.renew
	}
	return r.deadline
}

// schedule is a heap of leases by the time at which each must be looked at.
type schedule []*Lease

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].at().Before(s[j].at()) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].index, s[j].index = i+1, j+1
}

// Push is for container/heap.
func (s *schedule) Push(x any) {
	l := x.(*Lease)
	*s = append(*s, l)
	l.index = len(*s)
}

// Pop is for container/heap.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	l := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	l.index = 0
	return l
}
