package locker_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

func TestFairWaitersOfManyProcessesAreServedInTheOrderOfTheQueue(t *testing.T) {
	t.Parallel()
	const (
		processes = 8
		waiters   = 500
		key       = "order:fair"
	)
	server := redistest.Start(t)
	client := server.Client(t)
	l := newSingle(t, client)
	first := acquire(t, l, locker.Rule{Key: key})
	var children []*proc.Child
	for i := range processes {
		n := waiters / processes
		if i < waiters%processes {
			n++
		}
		children = append(children, workload{
			Addr: server.Addr(), Name: fmt.Sprint("p", i), Fair: true, Keys: []string{key}, TTL: 30 * time.Second, Workers: n, Rounds: 1,
		}.start(t))
	}
	for _, child := range children {
		child.Send("go")
	}
	eventually(t, "all wait", func() bool { return inLine(t, client, key) == waiters })
	var want []string
	for _, entry := range client.ZRange(t.Context(), redisstore.QueueKey(key), 0, -1).Val() {
		want = append(want, entry[strings.LastIndex(entry, "|")+1:])
	}
	start := time.Now()
	release(t, first)
	var h history
	for _, child := range children {
		h.add(t, child)
	}
	took := time.Since(start)
	served := h.check(t)[key]
	if len(served) != waiters {
		t.Fatalf("%d of %d were served", len(served), waiters)
	}
	slices.SortFunc(served, func(a, b section) int { return cmp.Compare(a.Fence, b.Fence) })
	strangers := 0
	for i, s := range served {
		if s.Worker != want[i] {
			t.Fatalf("number %d was %s, and %s was before it in the queue", i, s.Worker, want[i])
		}
		if i > 0 && served[i-1].Process != s.Process {
			strangers++
		}
	}
	if strangers < processes {
		t.Errorf("positive control: the key changed processes %d times", strangers)
	}
	t.Logf("%d waiters of %d processes within %v, the key changed processes %d times", waiters, processes, took, strangers)
}

// By default, callers of one process share a lease for a streak. A streak has a limited number of
// leases, and lasts for at most 10 ms. When the release that ends the streak is answered, the next
// leader of the process queues behind all waiters. So between two turns of a process P, each other
// process gets one streak, because after its streak it queues behind P; it gets more only if P's
// leader is late, for example because the machine is busy. No clock is needed to check this, because
// the fences show the order of the streaks. The test takes each pair of successive streaks of a
// process P. If callers of P waited when the first streak ended, most other processes must have at
// most one streak between the two.
//
// A waiter gets its lease in one of the first streaks that its process has after the waiter came,
// because a process serves its waiters in order.
func TestProcessesTakeTurnsByStreaks(t *testing.T) {
	t.Parallel()
	const (
		processes = 4
		workers   = 16
		rounds    = 40
		key       = "order:streaks"
	)
	server := redistest.Start(t)
	var children []*proc.Child
	for i := range processes {
		children = append(children, workload{
			Addr: server.Addr(), Name: fmt.Sprint("p", i), Keys: []string{key}, TTL: 30 * time.Second, Workers: workers, Rounds: rounds,
		}.start(t))
	}
	for _, child := range children {
		child.Send("go")
	}
	var h history
	for _, child := range children {
		h.add(t, child)
	}
	all := h.check(t)[key]
	if len(all) != processes*workers*rounds {
		t.Fatalf("%d of %d were served", len(all), processes*workers*rounds)
	}

	var streaks [][]section // consecutive fences make one streak
	for i, s := range all {
		if i > 0 && all[i-1].Process == s.Process && all[i-1].Fence+1 == s.Fence {
			streaks[len(streaks)-1] = append(streaks[len(streaks)-1], s)
		} else {
			streaks = append(streaks, []section{s})
		}
	}
	longest, compared, more := 0, 0, 0 // more: how often a process had more than one streak between
	last := make(map[string]int)       // for each process: its last streak
	for i, streak := range streaks {
		longest = max(longest, len(streak))
		process := streak[0].Process
		before, ok := last[process]
		last[process] = i
		if !ok || !threeWaited(all, streaks[before]) {
			continue
		}
		compared++
		turns := make(map[string]int)
		for _, between := range streaks[before+1 : i] {
			turns[between[0].Process]++
		}
		for _, n := range turns {
			if n > 1 {
				more++
			}
		}
	}
	if more > compared*(processes-1)/2 {
		t.Errorf("after %d streaks with callers waiting, another process was %d times served twice before their next streak", compared, more)
	}
	if longest > locker.LongestStreak {
		t.Errorf("a streak of %d", longest)
	}
	if compared < processes || longest < 2 {
		t.Errorf("positive control: %d pairs of streaks were compared, the longest streak was of %d", compared, longest)
	}
	t.Logf("%d leases in %d streaks, the longest of %d; %d pairs were compared, with %d turns out of order; the longest wait was %v",
		len(all), len(streaks), longest, compared, more, h.longestWait())
}

// threeWaited reports whether at least three callers of the same process waited when the streak
// ended. One or two callers prove nothing, because they may have been delayed between their look at
// the clock and their entry into the queue of their process.
func threeWaited(all, streak []section) bool {
	n := 0
	last := streak[len(streak)-1]
	for _, s := range all {
		if s.Process == last.Process && s.Fence > last.Fence && s.Asked < last.Start {
			n++
		}
	}
	return n >= 3
}
