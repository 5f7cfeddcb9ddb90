package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// ls and show name the holder and the waiters of a key on every kind of server. They show no
// secret.
func TestLsAndShow(t *testing.T) {
	t.Parallel()
	for name, s := range sites(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := "order:" + strings.ReplaceAll(name, " ", "-")
			lease := s.lockedAndWaitedFor(t, key)
			fence := fmt.Sprint(lease.Fence())
			table := exits(t, 0, s.nodes, "ls", "order:*")
			checkContains(t, table.out, "KEY", "WAITERS", key, "exclusive", fence, `holder \x1b[31m7\u009b`)
			if none := exits(t, 0, s.nodes, "ls", "basket:*"); none.out != "nothing is locked, and nobody waits\n" {
				t.Errorf("no key matches, and ls says %q", none.out)
			}
			shown := exits(t, 0, s.nodes, "show", key)
			checkContains(t, shown.out, fence, "one caller holds it", fmt.Sprint("waiters  ", s.waiters()), `holder \x1b[31m7\u009b`)

			lines := exits(t, 0, s.nodes, "ls", key, "--json").out
			var l lockJSON
			if err := json.Unmarshal([]byte(lines), &l); err != nil {
				t.Fatalf("%v in %s", err, lines)
			}
			if l.Key != key || l.State != "exclusive" || l.Fence != lease.Fence() || l.Waiters != s.waiters() || l.Metadata != "holder \x1b[31m7\u009b" ||
				l.Left == nil || *l.Left <= 0 || *l.Left > 30 || time.Since(l.Since).Abs() > time.Minute || l.Age <= 0 || l.Age > 60 {
				t.Errorf("ls --json: %s", lines)
			}
			one := exits(t, 0, s.nodes, "show", key, "--json").out
			for _, text := range []string{lines, one} {
				if i := strings.IndexFunc(strings.TrimSuffix(text, "\n"), unicode.IsControl); i >= 0 {
					t.Errorf("a terminal would obey the byte %d of %q", i, text)
				}
			}
			var full struct{ Queue []waiterJSON }
			if err := json.Unmarshal([]byte(one), &full); err != nil {
				t.Fatalf("%v in %s", err, one)
			}
			if len(full.Queue) != s.waiters() || len(full.Queue) == 1 && (full.Queue[0].State != "waits" || full.Queue[0].Process != 1) {
				t.Fatalf("the queue: %s", one)
			}
			if name != "quorum" {
				checkContains(t, shown.out, "waiter 8")
				if full.Queue[0].Metadata != "waiter 8" || full.Queue[0].Age <= 0 {
					t.Errorf("the waiter: %s", one)
				}
			}
			checkNoSecrets(t, "ls or show", table.out+shown.out+lines+one, s.tokens(t, key))
		})
	}
}

// listeningReader acquires key for a reader, until the key has n readers whose process listens. On a
// busy machine, a reader that comes before the subscription of its process stays without.
func listeningReader(t *testing.T, l locker.Locker, nodes []string, key string, n int) (lease *locker.Lease) {
	t.Helper()
	locktest.Eventually(t, fmt.Sprintf("%d readers listen", n), func() bool {
		lease = locktest.Acquire(t, l, locker.Rule{Key: key, Mode: locker.Shared})
		var each struct{ Reading []readerJSON }
		if err := json.Unmarshal([]byte(exits(t, 0, nodes, "show", key, "--json").out), &each); err != nil {
			t.Fatal(err)
		}
		if len(each.Reading) == n && !slices.ContainsFunc(each.Reading, func(r readerJSON) bool { return r.Process == 0 }) {
			return true
		}
		locktest.Release(t, lease)
		return false
	})
	return lease
}

// ls names each kind of holder, and sorts its lines.
func TestLsOfEveryKind(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	nodes, c := []string{"redis://" + server.Addr()}, server.Client(t)
	s := site{nodes: nodes, direct: []*redis.Client{c}, locker: func(t *testing.T) *locker.Engine { return locktest.Single(t, server.Client(t)) }}
	s.lockedAndWaitedFor(t, "busy")
	readers := locktest.ReadWrite(t, server.Client(t))
	defer locktest.Release(t, listeningReader(t, readers, nodes, "shared", 1))
	kept := locktest.Acquire(t, readers, locker.Rule{Key: "kept", KeepFor: time.Minute, TTL: time.Minute})
	locktest.Release(t, kept)
	if err := c.Set(t.Context(), "theirs", "redsync-value", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	if err := c.Set(t.Context(), "a cache", strings.Repeat("x", 1<<20), 0).Err(); err != nil {
		t.Fatal(err)
	}
	waiter := locktest.Queues(t, s.locker(t), locker.Rule{Key: "theirs"}, c)
	out := exits(t, 0, nodes, "ls", "--sort", "waiters").out
	checkContains(t, out, "shared 1", "kept", "foreign")
	if strings.Contains(out, "a cache") {
		t.Errorf("data that is no lock is listed:\n%s", out)
	}
	if lines := strings.Split(out, "\n"); len(lines) != 6 || !strings.HasPrefix(lines[3], "kept") && !strings.HasPrefix(lines[4], "kept") {
		t.Errorf("the keys with waiters do not come first:\n%s", out)
	}
	checkContains(t, exits(t, 0, nodes, "show", "shared").out, "shared by readers, with 1 leases")
	another := locktest.ReadWrite(t, server.Client(t))
	defer locktest.Release(t, listeningReader(t, another, nodes, "shared", 2))
	two := exits(t, 0, nodes, "show", "shared").out
	checkContains(t, two, "shared by readers, with 2 leases", "READER  PROCESS  LEFT", "\n1       1        ", "\n2       2        ")
	var each struct{ Reading []readerJSON }
	if err := json.Unmarshal([]byte(exits(t, 0, nodes, "show", "shared", "--json").out), &each); err != nil || len(each.Reading) != 2 || each.Reading[0].Left <= 0 {
		t.Errorf("the readers are %+v, %v", each.Reading, err)
	}
	checkContains(t, exits(t, 0, nodes, "show", "theirs").out, "another library or program")
	checkContains(t, exits(t, 0, nodes, "show", "nothing").out, "free")
	if err := c.Del(t.Context(), "theirs").Err(); err != nil {
		t.Fatal(err)
	}
	locktest.Release(t, waiter.Granted(10*time.Second))
}

// A wrong command line ends with code 64 and advice. A server that is down leads to code 69. No
// message contains the password of a URL.
func TestWrongCommandLines(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	good := []string{"redis://" + server.Addr()}
	for _, c := range []struct {
		nodes []string
		args  string
		exit  int
		says  string
	}{
		{good, "list", 64, "there is no command"},
		{good, "ls --sort size", 64, "age, key, left, waiters"},
		{good, "show", 64, "one key"},
		{good, "ls --foreign", 64, "give the pattern"},
		{[]string{good[0] + "," + good[0]}, "ls", 64, "separate the nodes by spaces"},
		{good, "run job true", 64, "behind --"},
		{good, "run job -n -w 1s -- true", 64, "exclude each other"},
		{[]string{good[0], good[0], good[0]}, "run job --shared -- true", 64, "a quorum has no readers"},
		{[]string{"redis://:secret@host:x"}, "ls", 64, "--node"},
		{[]string{"redis://:secret@127.0.0.1:1"}, "ls", 69, "refused"},
		{[]string{"redis://:secret@127.0.0.1:1"}, "doctor", 69, "no server answers"},
		{[]string{good[0], good[0], good[0]}, "ls", 64, "each node has one vote"},
	} {
		s := exits(t, c.exit, c.nodes, strings.Fields(c.args)...)
		checkContains(t, s.err, c.says)
		if strings.Contains(s.out+s.err, "secret") {
			t.Errorf("latchctl %s repeats the password: %s", c.args, s.err)
		}
	}
}

// --help shows an example of each command. Each example begins with the command's name.
func TestHelp(t *testing.T) {
	t.Parallel()
	for _, c := range newRoot().Commands() {
		help := exits(t, 0, nil, c.Name(), "--help").out
		checkContains(t, help, "Examples:\n", "latchctl "+c.Name(), c.Long)
	}
}
