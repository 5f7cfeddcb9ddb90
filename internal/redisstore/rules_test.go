package redisstore

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
)

// These tests check rules that each script must keep, whatever its caller does. The tests run the
// script files on Redis exactly as they are on disk.

// scriptText returns the concatenated texts of the named files: a script, with its fragments before
// it.
func scriptText(t *testing.T, names ...string) string {
	t.Helper()
	var all strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join("lua", name+".lua"))
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}

// A replica that lags behind may not have the lease yet, or may still have a lease that is over.
// Such a replica must not answer that there is no lease: this answer would end a held lease. Nor
// may the replica answer that another token holds the key. The replica answers READONLY, because
// each script makes a write before it gives such an answer.
func TestALaggingReplicaNeverSaysNo(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := server.Client(t)
	if err := c.Set(t.Context(), "H", strings.Repeat("O", tokenBytes)+":5:1", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.Do(t.Context(), "replicaof", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	token := strings.Repeat("T", tokenBytes)
	held := func(l, queue, entries string) []string { return []string{l, queue, "C", entries, "X", "D", "X"} }
	for name, call := range map[string]struct {
		script Script
		keys   []string
		args   []any
	}{
		"acquire of a held key":     {acquireScript, []string{"H", "Q", "C", "X"}, []any{token, 60000}},
		"release":                   {releaseScript, []string{"L", "Q", "C", "X"}, []any{token, ""}},
		"renew":                     {renewScript, []string{"L"}, []any{token, 1000}},
		"confirm":                   {confirmScript, []string{"L", "Q"}, []any{token, 1000}},
		"confirm of a reader":       {confirmScript, []string{"L", "Q", "R"}, []any{token + "|-|1", 1000}},
		"confirm of a permit":       {confirmScript, []string{"L", "Q", "P", "U"}, []any{token, 1000}},
		"break":                     {breakScript, []string{"L", "Q", "C", "R", "X"}, []any{token + ":1:", "revoked:", 1000}},
		"break of a permit":         {breakScript, []string{"L", "Q", "C", "P", "U", "X"}, []any{token + ":1:", "revoked:", 1000}},
		"free":                      {freeScript, []string{"L"}, []any{token}},
		"rw_acquire, a writer":      {rwAcquireScript, held("H", "Q", "R")[:6], []any{token, 60000, 1, "0", "", "", token + "|-", "0"}},
		"rw_acquire, a reader":      {rwAcquireScript, held("H", "Q", "R")[:6], []any{token, 60000, 1, "0", "", "", token + "|-", "1"}},
		"rw_release":                {rwReleaseScript, held("L", "Q", "R"), []any{token, 0, 0, 0, "", token + "|-", ""}},
		"sem_acquire of a held key": {semAcquireScript, []string{"H", "Q", "C", "P", "U", "X"}, []any{token, 60000, 1, 1, 2}},
		"sem_release":               {semReleaseScript, []string{"L", "Q", "C", "P", "U", "X"}, []any{token}},
	} {
		answer, err := c.Eval(t.Context(), call.script.Text, call.keys, call.args...).Result()
		if err == nil || !strings.Contains(err.Error(), "READONLY") {
			t.Errorf("%s: a replica answers %v, %v", name, answer, err)
		}
	}
}

// The counter keeps 16 digits when a block of fences crosses the end of a second: a counter with 17
// digits would be read as a number above 2^53, where fences repeat.
func TestTheCounterKeepsItsDigitsAtTheEndOfASecond(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client(t)
	// The block is 0.1 s long, so it crosses the end of a second in a tenth of all calls.
	const block = 99999
	for i, crossed := 0, false; !crossed; i++ {
		fence, counter := acquireFree(t, c, fmt.Sprint(i), block)
		if len(counter) != 16 || counter < fence {
			t.Fatalf("call %d: fence %s, counter %s", i, fence, counter)
		}
		crossed = counter[:10] > fence[:10]
	}
}

// From 2^53 on, Lua's numbers are not exact, so a counter that has come so far gives no fence.
func TestACounterAtTheEndOfTheNumbersGivesNoFence(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client(t)
	for _, counter := range []string{"9007199254740991", "9007199254740992"} {
		c.Set(t.Context(), "C", counter, 0)
		err := c.Eval(t.Context(), acquireScript.Text, []string{"L", "Q", "C", "X"}, strings.Repeat("T", tokenBytes), 60000).Err()
		if err == nil || !strings.Contains(err.Error(), "2^53") || c.Exists(t.Context(), "L").Val() != 0 {
			t.Errorf("%s: %v", counter, err)
		}
	}
}

// If a counter is ahead of the clock by more than 100 ms, it gives only one fence at a time. So
// the clock overtakes the counter.
func TestACounterAheadOfTheClockGivesOneFence(t *testing.T) {
	t.Parallel()
	c := redistest.Start(t).Client(t)
	for _, ahead := range []time.Duration{time.Second, 5 * time.Second} {
		now := c.Time(t.Context()).Val()
		start := now.Add(ahead).UnixMicro()
		name := ahead.String()
		if err := c.Set(t.Context(), "C"+name, start, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if fence, counter := acquireFree(t, c, name, 64); fence != counter || fence != fmt.Sprint(start+1) {
			t.Errorf("%v ahead: fence %s, counter %s, want both %d", ahead, fence, counter, start+1)
		}
	}
}

// acquireFree acquires the free key with the given name by acquire.lua. It returns the first fence
// of the block, and the counter.
func acquireFree(t *testing.T, c *redis.Client, name string, block int) (fence, counter string) {
	t.Helper()
	token := strings.Repeat("T", tokenBytes)
	keys := []string{"L" + name, "Q" + name, "C" + name, "X" + name}
	if err := c.Eval(t.Context(), acquireScript.Text, keys, token, 60000, "", "", block).Err(); err != nil {
		t.Fatal(err)
	}
	lease := c.Get(t.Context(), keys[0]).Val()
	return strings.Split(lease, ":")[1], c.Get(t.Context(), keys[2]).Val()
}
