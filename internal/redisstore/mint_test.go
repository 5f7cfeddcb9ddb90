package redisstore

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
)

// acquire.lua and acquire_each.lua have copies of the rule that makes one fence. The copies are in
// the short ways (the fast branches) of these scripts, which would be slow with the functions
// of grant.lua. All copies must make the same fence for every clock and every counter. No
// block of several fences moves the counter ahead of the clock by more than 100 ms.
func TestTheShortWayOfAcquireMintsTheFencesOfGrant(t *testing.T) {
	t.Parallel()
	m := minting{t, redistest.Start(t).Client(t)}
	const second = 1_795_380_000
	short := make(map[string]int) // how often the short way was taken, by the state of the counter
	for _, micros := range []int{0, 7, 12_345, 900_000, 900_001, 999_936, 999_937, 999_999} {
		now := second*1_000_000 + micros
		for _, counter := range []string{
			"", "0", "17", "no number", strings.Repeat("0", 13) + "abc", strings.Repeat("z", 16),
			fmt.Sprint(now - 1), fmt.Sprint(now), fmt.Sprint(now + 1), fmt.Sprint(now + 50_000), fmt.Sprint(now + 99_936),
			fmt.Sprint(now + 99_999), fmt.Sprint(now + 100_000), fmt.Sprint(now + 1_000_000), fmt.Sprint(1<<53 - 2),
		} {
			for _, block := range []int{1, 64, 65, 99_999, 100_000, 100_001, 1_000_000} {
				want, _ := m.mint(false, second, micros, counter, block)
				if last, err := strconv.Atoi(want.counter); err != nil || last > now+100_000 && !strings.HasSuffix(want.lease, ":1:") {
					t.Errorf("clock %d, counter %q, block %d: grant.lua writes %+v", now, counter, block, want)
				}
				got, ok := m.mint(true, second, micros, counter, block)
				if block > 1 {
					if ok {
						t.Errorf("the short way reserves %d fences", block)
					}
					continue
				}
				if ok {
					short[stateOfCounter(counter, now)]++
				} else if nothing := (minted{"", counter}); got != nothing { // acquire_each.lua must do nothing either
					t.Errorf("clock %d, counter %q, block %d: the short way is left, and the server has %+v", now, counter, block, got)
				}
				if ok && got != want {
					t.Errorf("clock %d, counter %q, block %d: the short way writes %+v, and grant.lua %+v", now, counter, block, got, want)
				}
				if each := m.mintEach(second, micros, counter); each != got {
					t.Errorf("clock %d, counter %q, block %d: the short way writes %+v, and acquire_each.lua %+v", now, counter, block, got, each)
				}
			}
		}
	}
	if short["none"] == 0 || short["behind"] == 0 || short["ahead"] == 0 {
		t.Errorf("the short way was taken %v times, want all three states of the counter", short)
	}
}

func stateOfCounter(counter string, now int) string {
	switch {
	case counter == "":
		return "none"
	case counter < fmt.Sprint(now):
		return "behind"
	}
	return "ahead"
}

// minting is a server on which scripts acquire a free key at a given time of the server's clock.
type minting struct {
	*testing.T
	client *redis.Client
}

// minted has the values that a grant has written.
type minted struct{ lease, counter string }

// mint acquires a free key by acquire.lua: by its short way (the fast branch) if short is true,
// otherwise by its long way. The result is false when acquire.lua does not take the short way.
func (m minting) mint(short bool, second, micros int, counter string, block int) (minted, bool) {
	m.Helper()
	text := strings.ReplaceAll(scriptText(m.T, "acquire"), "redis.call('TIME')", fmt.Sprintf("{'%d', '%d'}", second, micros))
	if short {
		text, _, _ = strings.Cut(text, "\n-- fragments\n")
		text += "\nreturn 'long'\n"
	} else {
		text = strings.Replace(text, "if not ARGV[5] and", "if false and", 1)
		text = strings.Replace(text, "\n-- fragments\n", "\n"+scriptText(m.T, "grant", "hand", "queue"), 1)
	}
	args := []any{"token", 60000}
	if block > 1 {
		args = append(args, "", "", block)
	}
	got, answer := m.eval(text, counter, args...)
	return got, answer != "long"
}

// mintEach does the work of mint with acquire_each.lua.
func (m minting) mintEach(second, micros int, counter string) minted {
	m.Helper()
	text := strings.ReplaceAll(scriptText(m.T, "acquire_each"), "redis.call('TIME')", fmt.Sprintf("{'%d', '%d'}", second, micros))
	got, _ := m.eval(text, counter, "token", 60000, "")
	return got
}

// eval runs a script on a server that has no data except the counter.
func (m minting) eval(text, counter string, args ...any) (minted, any) {
	m.Helper()
	ctx, c := m.Context(), m.client
	if err := c.FlushDB(ctx).Err(); err != nil {
		m.Fatal(err)
	}
	if counter != "" {
		if err := c.Set(ctx, "C", counter, 0).Err(); err != nil {
			m.Fatal(err)
		}
	}
	answer, err := c.Eval(ctx, text, []string{"L", "Q", "C", "X"}, args...).Result()
	if err != nil {
		m.Fatal(err)
	}
	return minted{c.Get(ctx, "L").Val(), c.Get(ctx, "C").Val()}, answer
}
