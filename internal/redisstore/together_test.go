package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
)

// keyStates are the states in which a call may find its key. The function do of each state changes
// L, Q, C or X of a key.
var keyStates = []struct {
	name string
	do   func(ctx context.Context, p redis.Pipeliner, l, q, c, x, token string)
}{
	{"free", func(context.Context, redis.Pipeliner, string, string, string, string, string) {}},
	{"free again", func(context.Context, redis.Pipeliner, string, string, string, string, string) {}},
	{"held by the token", func(ctx context.Context, p redis.Pipeliner, l, _, _, _, token string) {
		p.Set(ctx, l, token+":7:1", 0)
	}},
	{"held by the token, with waiters", func(ctx context.Context, p redis.Pipeliner, l, q, _, _, token string) {
		p.Set(ctx, l, token+":7:1", 0)
		p.ZAdd(ctx, q, redis.Z{Score: 5, Member: "waiter|-|60000|0|1|0|"})
	}},
	{"held by another token", func(ctx context.Context, p redis.Pipeliner, l, _, _, _, _ string) {
		p.Set(ctx, l, strings.Repeat("O", tokenBytes)+":7:1", 0)
	}},
	{"no lock", func(ctx context.Context, p redis.Pipeliner, l, _, _, _, _ string) { p.LPush(ctx, l, "data") }},
	{"a waiter of a free key", func(ctx context.Context, p redis.Pipeliner, _, q, _, _, _ string) {
		p.ZAdd(ctx, q, redis.Z{Score: 5, Member: "waiter|-|60000|0|1|0|"})
	}},
	{"undone", func(ctx context.Context, p redis.Pipeliner, _, _, _, x, _ string) { p.Set(ctx, x, "undone", 0) }},
	{"a counter far ahead", func(ctx context.Context, p redis.Pipeliner, _, _, c, _, _ string) {
		p.Set(ctx, c, "1999999999000000", 0)
	}},
	{"a counter behind", func(ctx context.Context, p redis.Pipeliner, _, _, c, _, _ string) {
		p.Set(ctx, c, "1700000000000000", 0)
	}},
	{"a short counter", func(ctx context.Context, p redis.Pipeliner, _, _, c, _, _ string) { p.Set(ctx, c, "12", 0) }},
}

// acquire_each.lua and release_each.lua may skip a call. For a call that they do not skip, they
// have the same effect as acquire.lua or release.lua.
func TestEachOfSeveralCallsIsDoneAsByItself(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := server.Client(t)
	acquire := strings.Replace(scriptText(t, "acquire"), "\n-- fragments\n", "\n"+scriptText(t, "grant", "hand", "queue"), 1)
	release := strings.Replace(scriptText(t, "release"), "\n-- fragments\n", "\n"+scriptText(t, "grant", "hand", "once"), 1)
	acquireEach, releaseEach := scriptText(t, "acquire_each"), scriptText(t, "release_each")
	done, left := map[string]int{}, map[string]int{}
	for round := range 150 {
		s := newEncounter(rand.New(rand.NewPCG(uint64(round), 1)), 12)
		for _, together := range []bool{true, false} {
			s.prepare(t, c)
			answers := make([]string, len(s.calls))
			if together {
				keys, args := []string{}, []any{}
				for _, k := range s.calls {
					if s.releases {
						keys, args = append(keys, k.l, k.q), append(args, k.token)
					} else {
						keys, args = append(keys, k.l, k.q, k.c, k.x), append(args, k.token, 60000, k.meta)
					}
				}
				text := acquireEach
				if s.releases {
					text = releaseEach
				}
				all, err := c.Eval(t.Context(), text, keys, args...).Text()
				if err != nil {
					t.Fatal(err)
				}
				quick := strings.Split(all, "\n")
				if len(quick) != len(s.calls) {
					t.Fatalf("%d answers to %d calls: %q", len(quick), len(s.calls), all)
				}
				copy(answers, quick)
				for i, k := range s.calls {
					if answers[i] == "" {
						left[k.prior]++
					} else {
						done[k.prior]++
					}
				}
			}
			if together {
				s.order = orderOf(answers)
			}
			for _, i := range s.order {
				if answers[i] != "" {
					continue
				}
				k := s.calls[i]
				text, args := acquire, []any{k.token, 60000}
				if k.meta != "" {
					args = append(args, k.meta)
				}
				if s.releases {
					text, args = release, []any{k.token}
				}
				answer, err := c.Eval(t.Context(), text, []string{k.l, k.q, k.c, k.x}, args...).Text()
				if answers[i] = answer; err != nil {
					answers[i] = errorCode(err.Error())
				}
			}
			s.note(t, c, answers, together)
		}
		if !slices.Equal(s.outcome[true], s.outcome[false]) {
			t.Fatalf("round %d: together\n%s\none by one\n%s", round, strings.Join(s.outcome[true], "\n"), strings.Join(s.outcome[false], "\n"))
		}
	}
	for _, name := range []string{"free", "free again", "held by the token", "a counter behind"} {
		if done[name] == 0 {
			t.Errorf("no call was done together: %s", name)
		}
	}
	for _, b := range keyStates {
		if left[b.name] == 0 {
			t.Errorf("no call was left out: %s", b.name)
		}
	}
	t.Logf("done %v, left out %v", slices.Sorted(maps.Keys(done)), slices.Sorted(maps.Keys(left)))
}

// orderOf returns the order in which the calls with these answers count: first the calls that one
// script made together, then the calls that were made alone. The calls are concurrent, so every
// order is right. But the test makes the calls together and also alone, and both times it must
// use the same order.
func orderOf(answers []string) (order []int) {
	for _, left := range []bool{false, true} {
		for i, answer := range answers {
			if (answer == "") == left {
				order = append(order, i)
			}
		}
	}
	return order
}

// encounter has several concurrent calls, and the state of each key before its call.
type encounter struct {
	releases bool
	calls    []metCall
	order    []int
	outcome  map[bool][]string
}

type metCall struct {
	l, q, c, x, token, prior, meta string
	do                             func(ctx context.Context, p redis.Pipeliner, l, q, c, x, token string)
}

// newEncounter chooses n random calls. Some calls share a counter, and some calls share a key.
func newEncounter(r *rand.Rand, n int) *encounter {
	s := &encounter{releases: r.IntN(2) == 0, outcome: map[bool][]string{}}
	for i := range n {
		b := keyStates[r.IntN(len(keyStates))]
		at := i
		if r.IntN(8) == 0 {
			at = r.IntN(n)
		}
		token := fmt.Sprintf("%0*d", tokenBytes, i)
		if r.IntN(10) == 0 {
			token = fmt.Sprintf("%0*d", tokenBytes, at)
		}
		s.calls = append(s.calls, metCall{
			l: fmt.Sprint("L", at), q: fmt.Sprint("Q", at), c: fmt.Sprint("C", at*7%(n-3)), x: "X" + token, token: token,
			prior: b.name, do: b.do, meta: []string{"", "worker 1"}[r.IntN(2)],
		})
	}
	return s
}

func (s *encounter) prepare(t *testing.T, c *redis.Client) {
	t.Helper()
	p := c.Pipeline()
	p.FlushDB(t.Context())
	for _, k := range s.calls {
		k.do(t.Context(), p, k.l, k.q, k.c, k.x, k.token)
	}
	_, _ = p.Exec(t.Context()) // an error is possible, because two calls may want data of different types at one key
}

// note records the answers and the present data on the server. The record contains no times,
// and no fences, because fences are made from times.
func (s *encounter) note(t *testing.T, c *redis.Client, answers []string, together bool) {
	t.Helper()
	var all []string
	blocks := map[string][][2]int{} // for each counter: the first fence of each lease, and the first fence after its block
	seen := map[string]bool{}
	for i, k := range s.calls {
		kind, _, _ := strings.Cut(answers[i], " ")
		if strings.Trim(kind, "0123456789") == "" {
			kind = "granted"
		}
		lease, _ := c.Get(t.Context(), k.l).Result()
		token, rest, _ := strings.Cut(lease, ":")
		fence, block, _ := strings.Cut(rest, ":")
		if len(fence) == 16 && !seen[k.l] && token == k.token {
			seen[k.l] = true
			first, n := number(fence), number(strings.SplitN(block, ":", 2)[0])
			blocks[k.c] = append(blocks[k.c], [2]int{first, first + n})
			if counter := number(c.Get(t.Context(), k.c).Val()); first+n-1 > counter {
				t.Errorf("fences %s to %d are above their counter %d", fence, first+n-1, counter)
			}
		}
		ttl := c.PTTL(t.Context(), k.l).Val() > 0
		all = append(all, fmt.Sprintf("%s (%s): %s, lease of %s with %s, TTL %v, %s, queue %v, tombstone %q, counter %v", k.l, k.prior,
			kind, token, block, ttl, c.Type(t.Context(), k.l).Val(), c.ZRange(t.Context(), k.q, 0, -1).Val(),
			c.Get(t.Context(), k.x).Val(), c.Exists(t.Context(), k.c).Val()))
	}
	s.outcome[together] = all
	for counter, all := range blocks {
		slices.SortFunc(all, func(a, b [2]int) int { return cmp.Compare(a[0], b[0]) })
		for i := 1; i < len(all); i++ {
			if all[i][0] < all[i-1][1] {
				t.Errorf("two leases have fences of %s in common: %v", counter, all)
			}
		}
	}
}

// A counter that holds data of another type spares the other calls: they get their leases, and the
// call with this counter is left out. If nothing was granted before, the script changes nothing.
func TestACounterThatIsNoTextSparesTheCallsBesideIt(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client(t)
	if err := c.LPush(t.Context(), "no counter", "data").Err(); err != nil {
		t.Fatal(err)
	}
	run := func(counters ...string) (string, error) {
		keys, args := []string{}, []any{}
		for i, counter := range counters {
			keys = append(keys, fmt.Sprint(counter, i), fmt.Sprint("Q", i), counter, fmt.Sprint("X", i))
			args = append(args, fmt.Sprintf("%0*d", tokenBytes, i), 60000, "")
		}
		return c.Eval(t.Context(), scriptText(t, "acquire_each"), keys, args...).Text()
	}
	answer, err := run("C", "no counter", "C", "D")
	answers := strings.Split(answer, "\n")
	if err != nil || len(answers) != 4 || answers[0] == "" || answers[1] != "" || answers[2] == "" || answers[3] == "" {
		t.Errorf("%q, %v", answer, err)
	}
	if n := c.DBSize(t.Context()).Val(); n != 6 { // three leases, two counters, and the list
		t.Errorf("%d keys: %v", n, c.Keys(t.Context(), "*").Val())
	}
	if answer, err := run("no counter", "E"); err == nil || errorCode(err.Error()) != "WRONGTYPE" || c.Exists(t.Context(), "E", "E1").Val() != 0 {
		t.Errorf("%q, %v, keys %v", answer, err, c.Keys(t.Context(), "*").Val())
	}
}
