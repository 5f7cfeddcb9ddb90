package quorum_test

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/quorum"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// skewed is a client of a server whose scripts see a different clock than the scripts of the other
// servers.
type skewed struct {
	*redis.Client
	scripts map[any]string
}

func (c skewed) Process(ctx context.Context, cmd redis.Cmder) error {
	if args := cmd.Args(); args[0] == "evalsha" {
		if sha, ok := c.scripts[args[1]]; ok {
			args[1] = sha
		}
	}
	return c.Client.Process(ctx, cmd)
}

// skewedNode returns a client of the server s whose scripts see a clock that is wrong by shift.
func skewedNode(t testing.TB, s *redistest.Server, shift time.Duration) skewed {
	t.Helper()
	c := skewed{s.Client(t), make(map[any]string)}
	const read = "local clock = redis.call('TIME')"
	for name, text := range quorum.ScriptTexts {
		moved := strings.ReplaceAll(text, read, fmt.Sprintf(`%s
			do local t = clock[1] * 1000000 + clock[2] + %d
			clock = {math.floor(t / 1000000), t %% 1000000} end`, read, shift.Microseconds()))
		sha, err := c.ScriptLoad(t.Context(), moved).Result()
		if err != nil {
			t.Fatal(name, err)
		}
		c.scripts[scriptSHA(name)] = sha
	}
	return c
}

// A lease has a block of fences, one for each caller to which the process hands the lease on. A
// node whose clock is behind reserves only one fence. So the whole lease gets a block of one fence,
// even if the other nodes have reserved more fences and are a quorum without this node.
func TestTheWholeBlockIsReservedByAQuorum(t *testing.T) {
	t.Parallel()
	servers := enrolled(t, 3)
	direct := clientsOf(t, servers)
	var cs []locker.Client
	for i, by := range []time.Duration{0, 0, -150 * time.Millisecond} {
		cs = append(cs, skewedNode(t, servers[i], by))
	}
	s := quorumStore(cs, nodeTimeout)
	checkSettled(t, s)
	counter := redisstore.CounterKey("a")
	seconds := 0
	for i := range 200 {
		ahead := uint64(time.Now().UnixMicro()) + 20_000
		counters := []uint64{ahead + rand.Uint64N(2000), ahead + rand.Uint64N(2000), ahead + rand.Uint64N(2000)}
		for i, c := range direct {
			if err := c.Set(t.Context(), counter, counters[i], 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		slices.Sort(counters)
		claim := store.Claim{Key: "a", Owner: crand.Text(), TTL: time.Minute, FenceCount: 64}
		var g store.Grant
		for range 2 { // the second call is a repetition, which finds the fence on which the first call has agreed
			var err error
			if g, err = s.Acquire(t.Context(), claim); err != nil || g.State != store.Granted {
				t.Fatal(g.State, err)
			}
			seconds += g.Rounds - 1
			if g.Fence <= counters[1] { // two nodes have voted, so the fence is above two counters
				t.Fatalf("%d: the fence %d, with the counters %d", i, g.Fence, counters)
			}
			last, reserved := g.Fence+uint64(g.FenceCount)-1, 0
			for _, c := range direct {
				if n, _ := c.Get(t.Context(), counter).Uint64(); n >= last {
					reserved++
				}
			}
			if reserved < 2 {
				t.Fatalf("%d: the lease has the fences %d to %d, and %d nodes know of the last", i, g.Fence, last, reserved)
			}
		}
		if g, err := s.Release(t.Context(), claim); err != nil || g.State != store.Released {
			t.Fatal(g.State, err)
		}
	}
	if seconds < 50 {
		t.Errorf("positive control: %d second rounds", seconds)
	}
}
