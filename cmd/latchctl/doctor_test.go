package main

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// diagnosis runs doctor, which must end with the code exit. It returns the finding of each check.
func diagnosis(t *testing.T, exit int, nodes []string, args ...string) map[string]finding {
	t.Helper()
	s := exits(t, exit, nodes, append([]string{"doctor", "--json"}, args...)...)
	all := make(map[string]finding)
	for line := range strings.Lines(s.out) {
		var f finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if known, ok := all[f.Check]; !ok || known.Level == okay || f.Level == bad {
			all[f.Check] = f
		}
	}
	return all
}

// finds fails the test unless doctor has a finding for this check with this level and text.
func finds(t *testing.T, all map[string]finding, check string, want level, text string) {
	t.Helper()
	f, there := all[check]
	if !there || f.Level != want || !strings.Contains(f.Text, text) {
		t.Errorf("doctor says of %s: %+v; want %s, %q", check, f, want, text)
	}
	if want == bad && f.Advice == "" {
		t.Errorf("the finding about %s has no advice: %+v", check, f)
	}
}

// On healthy servers of every kind, doctor finds nothing bad.
func TestDoctorOfHealthyServers(t *testing.T) {
	t.Parallel()
	for name, s := range sites(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.lockedAndWaitedFor(t, "order:"+name)
			all := diagnosis(t, 0, s.nodes)
			finds(t, all, "persistence", hint, "append-only")
			finds(t, all, "locks", okay, "are held")
			if all["persistence"].Server == "FailoverClient" {
				t.Error("doctor does not name the master behind the Sentinels")
			}
			if name != "quorum" {
				finds(t, all, "probe", okay, "")
			} else {
				finds(t, all, "quorum", okay, "all 3 nodes vote")
			}
			if name == "Sentinel" {
				finds(t, all, "replicas", hint, "2; a failover")
			}
			checkContains(t, exits(t, 0, s.nodes, "doctor").out, "ok    locks", "hint  persistence")
		})
	}
}

// The test gives a real server one defect after the other. doctor finds each defect.
func TestDoctorFinds(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	nodes, c := []string{"redis://" + server.Addr()}, server.Client(t)
	do := func(words ...any) {
		t.Helper()
		if err := c.Do(t.Context(), words...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	do("config", "set", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
	finds(t, diagnosis(t, 1, nodes), "eviction", bad, "allkeys-lru")
	do("config", "set", "maxmemory", "1", "maxmemory-policy", "noeviction")
	full := diagnosis(t, 1, nodes)
	finds(t, full, "probe", bad, "full")
	checkContains(t, full["probe"].Advice, "raise maxmemory")
	do("config", "set", "maxmemory", "0", "appendonly", "yes")
	finds(t, diagnosis(t, 0, nodes), "settings", okay, "fit")

	lease := locktest.Acquire(t, locktest.Single(t, c), locker.Rule{Key: "order:1", TTL: time.Hour})
	do("copy", "order:1", "order:2") // of which no client knows: a late copy of an acquire gives order:1 its TTL again
	do("persist", "order:2")
	finds(t, diagnosis(t, 1, nodes), "locks", bad, "order:2")
	do("del", "order:2")
	locktest.Release(t, lease)
	do("set", "theirs", "a value of redsync")
	waiter := locktest.Queues(t, locktest.Single(t, server.Client(t)), locker.Rule{Key: "theirs"}, c)
	finds(t, diagnosis(t, 1, nodes), "locks", bad, "theirs")
	do("del", "theirs")
	locktest.Release(t, waiter.Granted(10*time.Second))

	replica := redistest.Start(t, "--replicaof", "127.0.0.1 "+strings.TrimPrefix(server.Addr(), "127.0.0.1:"))
	all := diagnosis(t, 1, []string{"redis://" + replica.Addr()})
	finds(t, all, "role", bad, "replica of "+server.Addr())
	if advice := all["probe"].Advice; advice != giveTheMaster {
		t.Errorf("the advice about a replica is %q", advice)
	}
}

// Who calls doctor with the URL of a service's user learns whether this user may lock the keys of the
// service.
func TestDoctorTriesTheRightsOfItsUser(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := server.Client(t)
	words := []any{"acl", "setuser", "locks"}
	for word := range strings.FieldsSeq(documented(t, "ACL SETUSER locks ", "```")) {
		words = append(words, word)
	}
	if err := c.Do(t.Context(), words...).Err(); err != nil {
		t.Fatal(err)
	}
	as := []string{"redis://locks:secret@" + server.Addr()}
	all := diagnosis(t, 0, as, "--key", "order:1")
	finds(t, all, "probe", okay, "handed to a waiter")
	finds(t, all, "locks", hint, "not checked")
	finds(t, diagnosis(t, 0, as), "probe", hint, "latchctl:doctor")
	finds(t, diagnosis(t, 1, as, "--key", "basket:1"), "probe", bad, "basket:1")
	if err := c.Do(t.Context(), "acl", "setuser", "locks", "-get").Err(); err != nil {
		t.Fatal(err)
	}
	finds(t, diagnosis(t, 1, as, "--key", "order:1"), "probe", bad, "cannot be locked")
	if err := c.Do(t.Context(), "acl", "setuser", "locks", "-eval", "-evalsha").Err(); err != nil {
		t.Fatal(err)
	}
	finds(t, diagnosis(t, 1, as), "probe", bad, "forbids the scripts")
}

// documented returns the part of docs/operations.md between the texts from and to.
func documented(t *testing.T, from, to string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), from)
	part, _, ends := strings.Cut(rest, to)
	if !found || !ends {
		t.Fatalf("docs/operations.md has no part from %q to %q", from, to)
	}
	return part
}

// doctor finds a node of a quorum that is down. It writes nothing to servers that are not nodes yet.
func TestDoctorOfAQuorum(t *testing.T) {
	t.Parallel()
	var nodes []string
	var clients []locker.Client
	var servers []*redistest.Server
	for range 3 {
		s := redistest.Start(t)
		servers, nodes, clients = append(servers, s), append(nodes, "redis://"+s.Addr()), append(clients, s.Client(t))
	}
	finds(t, diagnosis(t, 1, nodes), "quorum", bad, "EnrollRedlock")
	for _, s := range servers {
		if keys := s.Client(t).Keys(t.Context(), "*").Val(); len(keys) > 0 {
			t.Errorf("doctor wrote %q", keys)
		}
	}
	if err := locker.EnrollRedlock(t.Context(), clients); err != nil {
		t.Fatal(err)
	}
	finds(t, diagnosis(t, 0, nodes), "quorum", okay, "all 3 nodes vote")
	servers[1].Kill()
	all := diagnosis(t, 1, nodes)
	finds(t, all, "reachable", bad, "does not answer")
	finds(t, all, "quorum", bad, "node 1")
	if err := servers[0].Client(t).FlushAll(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	all = diagnosis(t, 1, nodes)
	finds(t, all, "quorum", bad, "does not vote")
	checkContains(t, exits(t, 1, nodes, "doctor").out, "(joins)", "wait, and restart no other node")
}

// A node of a quorum that hangs takes no time from the checks of the others. doctor says that this
// node does not vote, and no other.
func TestANodeThatHangsHidesNoOther(t *testing.T) {
	t.Parallel()
	var nodes []string
	var clients []locker.Client
	var last *redistest.Server
	for range 3 {
		last = redistest.Start(t)
		nodes, clients = append(nodes, "redis://"+last.Addr()), append(clients, last.Client(t))
	}
	if err := locker.EnrollRedlock(t.Context(), clients); err != nil {
		t.Fatal(err)
	}
	last.Pause()
	t.Cleanup(last.Resume)
	out := exits(t, 1, nodes, "doctor", "--timeout", "20s").out
	checkContains(t, out, "does not answer", "0 are held", "node 2, "+last.Addr()+", does not vote")
	if n := strings.Count(out, "does not vote"); n != 1 {
		t.Errorf("%d nodes do not vote:\n%s", n, out)
	}
	slices.Reverse(nodes)
	checkContains(t, exits(t, 0, nodes, "ls", "--timeout", "5s").out, "nothing is locked")
}

// doctor locks a throw-away key, and so finds what a hosted server refuses. It says the same as the
// error of the first lock of a service.
func TestDoctorTriesALock(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	behind := func(limits redistest.Restrictions) []string {
		return []string{"redis://" + redistest.StartRestricted(t, server, limits).Addr()}
	}
	all := diagnosis(t, 1, behind(redistest.Restrictions{Commands: []string{"eval", "evalsha", "script"}}))
	finds(t, all, "probe", bad, "locker.NewScriptless")
	all = diagnosis(t, 0, behind(redistest.Restrictions{Words: []string{"publish", "pubsub"}}))
	finds(t, all, "probe", hint, "poll")
	if left := server.Client(t).Keys(t.Context(), "latchctl:*").Val(); len(left) > 0 {
		t.Errorf("doctor has left %q", left)
	}
}
