package locktest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// Visitors are the readers and writers of one process.
type Visitors struct {
	Addr, Name, Key  string
	Readers, Writers int
	For, Hold        time.Duration
}

// Run makes each visitor acquire and release the key again and again for v.For. Run returns all
// visits.
func (v Visitors) Run(l *locker.Engine) []Visit {
	var mu sync.Mutex
	var all []Visit
	until := time.Now().Add(v.For)
	var wg sync.WaitGroup
	for i := range v.Readers + v.Writers {
		mode := locker.Shared
		if i >= v.Readers {
			mode = locker.Exclusive
		}
		wg.Go(func() {
			for time.Now().Before(until) {
				s := v.visit(l, fmt.Sprint(v.Name, "/", i), mode)
				mu.Lock()
				all = append(all, s)
				mu.Unlock()
				if s.Failed != "" {
					return
				}
				if mode == locker.Exclusive {
					<-time.After(5 * time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
	return all
}

func (v Visitors) visit(l *locker.Engine, visitor string, mode locker.Mode) Visit {
	ctx, cancel := context.WithTimeout(context.Background(), StuckAfter)
	defer cancel()
	s := Visit{Who: visitor, Mode: mode, Asked: time.Now().UnixNano()}
	lease, err := l.Acquire(ctx, locker.Rule{Key: v.Key, Mode: mode, TTL: 20 * time.Second})
	if err != nil {
		s.Failed = err.Error()
		return s
	}
	s.Fence, s.Start = lease.Fence(), time.Now().UnixNano()
	<-time.After(v.Hold)
	s.End = time.Now().UnixNano()
	if err := lease.Release(ctx); err != nil {
		s.Failed = err.Error()
	}
	return s
}

// Visit describes the time for which one visitor held its lease. Its times are read from the
// machine's clock, which all processes share.
type Visit struct {
	Who               string
	Mode              locker.Mode
	Fence             uint64
	Asked, Start, End int64 // in ns
	Failed            string
}

// CheckVisits fails the test if there was an error, if a writer's visit overlaps another visit, or
// if fences do not grow from phase to phase. CheckVisits returns the numbers of reads, writes and
// phases. It also returns the largest number of phases that began while one writer waited.
func CheckVisits(t testing.TB, all []Visit) (reads, writes, phases, overtaken int) {
	t.Helper()
	slices.SortFunc(all, func(a, b Visit) int { return cmp.Compare(a.Start, b.Start) })
	var writer, last Visit // the last writer, and the visit with the largest fence
	var ended int64        // when the last of all visitors had left
	began := make(map[uint64]int64)
	for _, s := range all {
		if s.Failed != "" {
			t.Errorf("%s: %s", s.Who, s.Failed)
			return
		}
		if s.Mode == locker.Shared {
			reads++
			if _, known := began[s.Fence]; !known {
				began[s.Fence] = s.Start
				phases++
			}
			if s.Start < writer.End {
				t.Errorf("reader %s came in %v before writer %s had left", s.Who, time.Duration(writer.End-s.Start), writer.Who)
			}
		} else {
			writes++
			if s.Start < ended {
				t.Errorf("writer %s came in %v before somebody had left", s.Who, time.Duration(ended-s.Start))
			}
		}
		// The fence of this visit must not be smaller than the fence of an earlier visit.
		if s.Fence < last.Fence || s.Fence == last.Fence && (s.Mode == locker.Exclusive || last.Mode == locker.Exclusive) {
			t.Errorf("fence %d of %s after %d of %s", s.Fence, s.Who, last.Fence, last.Who)
		}
		if s.Mode == locker.Exclusive {
			writer = s
		}
		if s.Fence > last.Fence {
			last = s
		}
		ended = max(ended, s.End)
		if t.Failed() {
			return // stop here, because later failures would follow from this failure
		}
	}
	subscribed := make(map[string]bool)
	for _, s := range all {
		if s.Mode == locker.Shared || !subscribed[s.Who] { // a visitor's first wait does not count, because the visitor must subscribe before it can queue
			subscribed[s.Who] = s.Mode == locker.Exclusive
			continue
		}
		n := 0
		for _, at := range began {
			if at > s.Asked && at < s.Start {
				n++
			}
		}
		overtaken = max(overtaken, n)
	}
	return reads, writes, phases, overtaken
}
