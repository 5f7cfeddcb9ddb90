package chaos_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/chaos"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// control is a run in which one rule is left out. Then the checker must find a violation.
type control struct {
	name  string
	round round
	// violates says what must be found.
	violates func(v *verdict) int
	// with says whether the same run with the rule must be without violations.
	with bool
}

func lostUpdates(v *verdict) int { return v.LostUpdates }

// undocumented counts the overlaps for which there is no documented cause.
func undocumented(v *verdict) (n int) {
	for _, o := range v.Overlaps {
		if o.Documented == "" {
			n++
		}
	}
	return n
}

// documented counts the overlaps that docs/quorum.md allows.
func documented(v *verdict) int { return len(v.Overlaps) - undocumented(v) }

const (
	// These are the rules in the texts of the scripts.
	compareToken = "local ours = type(lease) == 'string' and string.find(lease, ARGV[1] .. ':', 1, true) == 1"
	standing     = "local known = votes(marker, ARGV[1], stamp)"
	remembers    = "local known = true\nmarker = string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') .. string.rep('0', 40)"
	tombstone    = "redis.call('SET', KEYS[4], 'undone', 'PX', undo)"
)

// controls are the rules whose absence the checker must notice. A library without fences cannot
// prevent lost updates, and does not promise it. With two masters of one node no rule is left out:
// the checker must see what docs/quorum.md excepts.
var controls = []control{
	{"no fence is checked", round{Topology: oneServer, Kind: kindExclusive, Unfenced: true, LongHold: true, Only: []string{workerStopped}}, lostUpdates, true},
	{"no token is compared", round{Topology: oneServer, Kind: kindExclusive, Patch: [2]string{compareToken, "local ours = type(lease) == 'string'"}, LongHold: true, Only: []string{workerStopped, "requests delayed"}}, undocumented, true},
	{"no quarantine", round{Topology: quorum3, Kind: kindExclusive, Patch: [2]string{standing, remembers}, LongHold: true, Only: []string{twoRestarts}}, undocumented, true},
	{"no quarantine of a promoted replica", round{Topology: quorumPairs, Kind: kindExclusive, Patch: [2]string{standing, remembers}, LongHold: true, Only: []string{promotion}}, undocumented, true},
	{"two masters of one node", round{Topology: quorumPairs, Kind: kindExclusive, Only: []string{promotedBeside}}, documented, true},
	{"redsync", round{Topology: oneServer, Kind: kindExclusive, Library: "redsync", Unfenced: true, LongHold: true, Only: []string{workerStopped}}, lostUpdates, false},
	{"redislock", round{Topology: oneServer, Kind: kindExclusive, Library: "redislock", Unfenced: true, LongHold: true, Only: []string{workerStopped}}, lostUpdates, false},
	{"rueidislock", round{Topology: oneServer, Kind: kindExclusive, Library: "rueidislock", Unfenced: true, LongHold: true, Only: []string{workerStopped}}, lostUpdates, false},
	{"redsync, 3 servers", round{Topology: quorum3, Kind: kindExclusive, Library: "redsync", Unfenced: true, LongHold: true, Only: []string{twoRestarts}}, undocumented, false},
}

// controlTries is how many rounds a control has to violate.
const controlTries = 8

// The same faults, and the same checker: without the rule, or with a library that has no such rule,
// there is a violation within the time of a few rounds. With the rule, there is none. A recorded
// control has two rounds at least.
// What other libraries do depends on their luck in a round, so they are part of recorded runs only.
func TestEachControlViolates(t *testing.T) {
	for _, c := range controls {
		if c.round.Library != "" && *record == "" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			found, grants, least, lasts := 0, 0, uint64(1), 4*time.Second
			if *record != "" {
				least, lasts = 2, *roundFor
			}
			for try := range uint64(controlTries) {
				r := c.round
				r.Seed, r.For, r.Keys = 1+try, lasts, 1
				res := run(t, r)
				res.Control = c.name
				keep(t, res)
				grants += res.Verdict.Grants
				if found += c.violates(res.Verdict); found > 0 && try+1 >= least {
					break
				}
			}
			t.Logf("%d violations in %d grants", found, grants)
			if found == 0 {
				t.Errorf("there was no violation in %d rounds: the checker, or the faults, prove nothing", controlTries)
			}
			if !c.with {
				return
			}
			r := c.round
			r.Seed, r.For, r.Keys, r.Unfenced, r.Patch = 1, lasts, 1, false, [2]string{}
			res := run(t, r)
			res.Control = c.name + ": with the rule"
			keep(t, res)
			if v := res.Verdict; len(v.Violations) > 0 {
				t.Errorf("with the rule: %v", v.Violations)
			}
		})
	}
}

// A call may arrive at the server after its caller has given up, and after the undo of the call.
// With the tombstone of the undo it takes nothing. Without, it locks the key for nobody.
func TestALateAcquireTakesNothingAndWithoutTombstonesItDoes(t *testing.T) {
	const calls = 20
	for _, c := range []struct {
		name  string
		patch [2]string
		want  int
	}{
		{"no tombstone is left", [2]string{tombstone, "redis.call('GET', KEYS[4])"}, calls},
		{"no tombstone is left: with the rule", [2]string{}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := redistest.Start(t)
			proxy := chaos.NewProxy(t, server.Addr())
			if c.patch[0] != "" {
				proxy.Patch(c.patch[0], c.patch[1])
			}
			l, err := locker.New(redis.NewClient(&redis.Options{Addr: proxy.Addr(), ContextTimeoutEnabled: true}))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close(context.Background()) })
			witness := server.Client(t)
			if lease, err := l.Acquire(t.Context(), locker.Rule{Key: "first"}); err != nil || lease.Release(t.Context()) != nil {
				t.Fatal(err) // the server has learnt the scripts
			}
			locked := 0
			for i := range calls {
				key := fmt.Sprint("late:", i)
				held := proxy.HoldRequests(1, scriptCall(key, "acquire"))
				ran := scriptsRun(t, witness)
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
				_, err := l.Acquire(ctx, locker.Rule{Key: key, TTL: time.Minute})
				cancel()
				if err == nil {
					t.Fatal("the call was not held")
				}
				held.Await(t, 1)
				await(t, "the undo has run", func() bool { return scriptsRun(t, witness) > ran })
				ran = scriptsRun(t, witness)
				held.Lift()
				await(t, "the late call has run", func() bool { return scriptsRun(t, witness) > ran })
				locked += int(witness.Exists(t.Context(), key).Val())
			}
			keep(t, &result{Control: c.name, Round: round{Only: []string{"a call arrives after its undo"}}, Verdict: &verdict{ForNobody: locked}})
			if locked != c.want {
				t.Errorf("%d of %d late calls locked their keys, want %d", locked, calls, c.want)
			}
		})
	}
}

// scriptCall selects the calls of scripts with one of the names that have the key.
func scriptCall(key string, names ...string) chaos.Match {
	digests := digestsOf(names)
	return func(request []byte) bool {
		return bytes.Contains(request, []byte(key)) &&
			slices.ContainsFunc(digests, func(d string) bool { return bytes.Contains(request, []byte(d)) })
	}
}

// scriptsRun returns how many scripts the server has run.
func scriptsRun(t *testing.T, c *redis.Client) (n int) {
	t.Helper()
	for name, stat := range c.InfoMap(t.Context(), "commandstats").Val()["Commandstats"] {
		if calls := 0; strings.HasPrefix(name, "cmdstat_eval") {
			if _, err := fmt.Sscanf(stat, "calls=%d", &calls); err != nil {
				t.Fatal(err)
			}
			n += calls
		}
	}
	return n
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
		time.Sleep(2 * time.Millisecond) //nolint:forbidigo // the pause between looks
	}
}
