package redisstore_test

import (
	"crypto/rand"
	"strconv"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
)

// acquire.lua has a short way, which is fast but serves only simple cases, and a long way for
// all cases. Both give the same fence for every value of the counter.
func TestAFenceIsLargerThanTheCounterAndNoEarlierThanTheClock(t *testing.T) {
	const block = 64
	client := redistest.Start(t).Client(t)
	backend := locktest.SingleStore(client)
	for name, c := range map[string]struct {
		counter func(now int64) string // "": there is no counter
		block   int
		clock   bool // true: the fence is the time of the server's clock; false: the fence follows the counter
	}{
		"no counter":                    {func(int64) string { return "" }, block, true},
		"behind the clock":              {func(now int64) string { return strconv.FormatInt(now-1000, 10) }, block, true},
		"ahead of the clock":            {func(now int64) string { return strconv.FormatInt(now+50_000, 10) }, block, false},
		"too far ahead for a block":     {func(now int64) string { return strconv.FormatInt(now+60_000_000, 10) }, 1, false},
		"a number with fewer digits":    {func(int64) string { return "99" }, block, true},
		"a number with more digits":     {func(now int64) string { return strconv.FormatInt(4*now, 10) }, 1, false},
		"no number":                     {func(int64) string { return "none of our own!" }, block, true},
		"no number, and further behind": {func(int64) string { return "~~~~~~~~~~~~~~~~" }, block, true},
	} {
		t.Run(name, func(t *testing.T) {
			claim := store.Claim{Key: "fence:" + name, Owner: rand.Text(), TTL: time.Minute, FenceCount: block}
			counter := redisstore.CounterKey(claim.Key)
			now := client.Time(t.Context()).Val().UnixMicro()
			was := c.counter(now)
			client.Del(t.Context(), counter)
			if was != "" {
				client.Set(t.Context(), counter, was, 0)
			}
			g, err := backend.Acquire(t.Context(), claim)
			if err != nil || g.State != store.Granted || g.FenceCount != c.block {
				t.Fatalf("%+v %v", g, err)
			}
			last, _ := strconv.ParseUint(was, 10, 64)
			if c.clock && g.Fence != uint64(g.At.UnixMicro()) || !c.clock && g.Fence != last+1 {
				t.Fatalf("the counter was %s, the clock is %d, the fence %d", was, g.At.UnixMicro(), g.Fence)
			}
			if at := g.At.UnixMicro(); at < now || at > now+time.Minute.Microseconds() {
				t.Fatalf("the clock was %d, and is %d", now, at)
			}
			if got := client.Get(t.Context(), counter).Val(); got != strconv.FormatUint(g.Fence+uint64(g.FenceCount)-1, 10) {
				t.Fatalf("the counter is %s after fence %d and a block of %d", got, g.Fence, g.FenceCount)
			}
			if again, err := backend.Acquire(t.Context(), claim); err != nil || again.Fence != g.Fence || again.FenceCount != g.FenceCount {
				t.Fatalf("%+v, then %+v %v", g, again, err)
			}
		})
	}
}

// A lone caller reserves one fence of a free key. In the queue it waits for a whole block, because
// others of its process may come before its turn.
func TestALoneCallerReservesOneFence(t *testing.T) {
	t.Parallel()
	backend := locktest.SingleStore(redistest.Start(t).Client(t))
	holder := store.Claim{Key: "lone", Owner: rand.Text(), TTL: time.Minute, FenceCount: 64, Lone: true, Queue: true, HandoffTTL: time.Minute}
	waiter := holder
	waiter.Owner = rand.Text()
	if g, err := backend.Acquire(t.Context(), holder); err != nil || g.State != store.Granted || g.FenceCount != 1 {
		t.Errorf("%+v, %v, want one fence", g, err)
	}
	stateOf(t, store.Busy)(backend.Acquire(t.Context(), waiter))
	stateOf(t, store.Released)(backend.Release(t.Context(), holder))
	if g, err := backend.Acquire(t.Context(), waiter); err != nil || g.State != store.Granted || g.FenceCount != 64 {
		t.Errorf("after a hand-off %+v, %v, want 64 fences", g, err)
	}
}
