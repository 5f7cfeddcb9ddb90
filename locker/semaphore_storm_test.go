package locker_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// stay is the time for which a caller holds its units. A stay begins after the grant. A stay
// ends before the release, or when the caller's lease ends by the caller's clock. Times are in
// ns by the machine's clock.
type stay struct {
	Weight      int
	Start, End  int64
	Fence       uint64
	Waited      int64
	Lost        bool
	Unavailable int
}

const stormUnits = 4

// permitCrew is a process whose callers take units again and again, until its time is over.
var permitCrew = proc.Register("permit-crew", func(args []string) {
	during, err := time.ParseDuration(args[1])
	if err != nil {
		panic(err)
	}
	l, err := locker.NewSemaphore(redis.NewClient(&redis.Options{Addr: args[0]}), stormUnits, locker.WithTTL(1500*time.Millisecond))
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	until := time.Now().Add(during)
	stays, crew := make([][]stay, 6), sync.WaitGroup{}
	for i := range stays {
		crew.Go(func() {
			for n := 0; time.Now().Before(until); n++ {
				weight := 1
				if (i+n)%8 == 0 {
					weight = 1 + n%stormUnits
				}
				stays[i] = append(stays[i], stayWith(l, weight))
			}
		})
	}
	crew.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = l.Close(ctx)
	text, err := json.Marshal(slices.Concat(stays...))
	if err != nil {
		panic(err)
	}
	fmt.Printf("done %s\n", text)
	proc.Listen()
})

func stayWith(l locker.Locker, weight int) (s stay) {
	ctx, cancel := context.WithTimeout(context.Background(), stuckAfter)
	defer cancel()
	s.Weight = weight
	asked := time.Now()
	lease, err := l.Acquire(ctx, locker.Rule{Key: "storm", Weight: weight})
	for ; errors.Is(err, locker.ErrUnavailable) && ctx.Err() == nil; s.Unavailable++ {
		lease, err = l.Acquire(ctx, locker.Rule{Key: "storm", Weight: weight})
	}
	if err != nil {
		panic(err)
	}
	s.Start, s.Waited, s.Fence = time.Now().UnixNano(), int64(time.Since(asked)), lease.Fence()
	select {
	case <-lease.Context().Done():
	case <-time.After(rand.N(40 * time.Millisecond)):
	}
	s.End = min(time.Now().UnixNano(), lease.Expires().UnixNano())
	s.Lost = errors.Is(lease.Release(ctx), locker.ErrLost)
	return s
}

// mostUnits returns the largest number of units that were held at the same time. The result
// sharedFence is true if two holders had the same fence.
func mostUnits(stays []stay) (most int, sharedFence bool) {
	type change struct {
		time  int64
		units int
	}
	var changes []change
	fences := make(map[uint64]bool)
	for _, s := range stays {
		sharedFence = sharedFence || fences[s.Fence]
		fences[s.Fence] = true
		if s.Start < s.End {
			changes = append(changes, change{s.Start, s.Weight}, change{s.End, -s.Weight})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.time, b.time), cmp.Compare(a.units, b.units)) })
	used := 0
	for _, c := range changes {
		used += c.units
		most = max(most, used)
	}
	return most, sharedFence
}

// Processes take units while faults strike: the processes are stopped and killed, and lose their
// connections, their subscriptions and their scripts. The units that are held never exceed the
// limit, no caller is stuck, and nothing is left.
func TestPermitsInAStorm(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client(t)
	const during = 8 * time.Second
	var crews []*proc.Child
	start := func(d time.Duration) {
		crews = append(crews, permitCrew.Start(t, server.Addr(), d.String()))
		crews[len(crews)-1].Expect(t, "ready")
	}
	for range 4 {
		start(during)
	}
	struck := make(map[string]int)
	kill := func(kind string) int {
		n, _ := client.ClientKillByFilter(t.Context(), "type", kind, "skipme", "yes").Result()
		return int(n)
	}
	faults := map[string]func() int{
		"stopped": func() int {
			child := crews[rand.N(len(crews))]
			child.Pause()
			time.Sleep(rand.N(2500 * time.Millisecond)) //nolint:forbidigo // the process is stopped in this time
			child.Resume()
			return 1
		},
		"killed": func() int {
			crews[0].Kill()
			crews = crews[1:]
			return 1
		},
		"connections":   func() int { return kill("normal") },
		"subscriptions": func() int { return kill("pubsub") },
		"scripts":       func() int { _ = client.ScriptFlush(t.Context()); return 1 },
	}
	names := slices.Sorted(maps.Keys(faults))
	for began, n := time.Now(), 0; time.Since(began) < during-2*time.Second; n++ {
		name := names[n%len(names)]
		if name == "killed" && n > len(names) {
			continue
		}
		struck[name] += faults[name]()
		time.Sleep(rand.N(100 * time.Millisecond)) //nolint:forbidigo // the time between two faults
	}
	var stays []stay
	for _, child := range crews {
		var more []stay
		if err := json.Unmarshal([]byte(child.Expect(t, "done")), &more); err != nil {
			t.Fatal(err)
		}
		stays = append(stays, more...)
	}
	most, twice := mostUnits(stays)
	if most != stormUnits || twice {
		t.Errorf("%d units were held at once, want %d; a fence came twice: %v", most, stormUnits, twice)
	}
	lost, longest := 0, time.Duration(0)
	for _, s := range stays {
		longest = max(longest, time.Duration(s.Waited))
		if s.Lost {
			lost++
		}
	}
	t.Logf("%d stays, %d lost, the longest wait %v; faults %v", len(stays), lost, longest, struck)
	for _, name := range names {
		if struck[name] == 0 {
			t.Errorf("positive control: no %s", name)
		}
	}
	if longest > stuckAfter/2 || len(stays) < 100 {
		t.Errorf("%d stays, and a caller waited for %v", len(stays), longest)
	}
	eventually(t, "the dead have left", func() bool {
		n, err := client.Exists(t.Context(), "storm").Result()
		return err == nil && n == 0
	})
}

// If callers hold units at the same time so that the limit is exceeded by one unit, mostUnits
// notices that.
func TestMostUnits(t *testing.T) {
	t.Parallel()
	stays := []stay{{1, 0, 10, 1, 0, false, 0}, {2, 5, 20, 2, 0, false, 0}, {1, 10, 12, 3, 0, false, 0}, {2, 19, 30, 4, 0, false, 0}}
	if most, twice := mostUnits(stays); most != 4 || twice {
		t.Errorf("%d units, %v, want 4", most, twice)
	}
	stays[3].Fence = 1
	if _, twice := mostUnits(stays); !twice {
		t.Error("a fence came twice")
	}
}
