package quorum

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
)

// The wall clock of one server steps forward and back while five processes lock. A clock step
// is undone after a moment, or after longer than a lease lasts. Some steps are smaller than
// WithMaxSkew, and others are an hour. No two callers hold a key at once, and fences never
// become smaller. The test undoes a step of more than WithMaxSkew only when a process has
// measured it. docs/guarantees.md states why: a step that no process has measured may end
// leases early.
func TestAClockStrobe(t *testing.T) {
	t.Parallel()
	first, clock := redistest.StartWithClock(t)
	servers := []*redistest.Server{first, redistest.Start(t), redistest.Start(t)}
	_, engines := processes(t, servers)
	watch := first.Client(t)
	jumps := []time.Duration{20 * time.Millisecond, 40 * time.Millisecond, time.Second, 5 * time.Second, time.Hour}
	lockFor(t, *soakFor, engines, func() {
		by := jumps[rand.IntN(len(jumps))]
		if rand.IntN(2) == 0 {
			by = -by
		}
		for range 1 + rand.IntN(20) {
			clock.Set(by)
			time.Sleep(time.Duration(1+rand.IntN(60)) * time.Millisecond)
			if by.Abs() >= time.Second {
				awaitSeen(t, watch)
			}
			clock.Set(0)
			time.Sleep(time.Duration(1+rand.IntN(60)) * time.Millisecond)
		}
		if rand.IntN(3) == 0 {
			time.Sleep(soakWait + 500*time.Millisecond)
		}
	})
}

// awaitSeen waits until a process has measured the clock step of the node and has made the node
// stop voting.
func awaitSeen(t *testing.T, node *redis.Client) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); strings.Contains(node.Get(t.Context(), "latchkit:node").Val(), "/v/"); {
		if time.Now().After(deadline) {
			t.Fatal("nobody has seen that the clock is wrong")
		}
		time.Sleep(time.Millisecond)
	}
}
