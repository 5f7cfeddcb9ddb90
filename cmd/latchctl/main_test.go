package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// asLatchctl is the environment variable that makes the test binary behave like latchctl.
const asLatchctl = "LATCHCTL_TEST_BE"

func TestMain(m *testing.M) {
	if os.Getenv(asLatchctl) != "" {
		if err := os.Unsetenv(asLatchctl); err != nil {
			panic(err)
		}
		main()
	}
	redistest.Main(m)
}

// latchctl returns a command that runs latchctl with these nodes and arguments.
func latchctl(t *testing.T, nodes []string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	// At its end, a program with the race detector sleeps for a second by default.
	cmd.Env = append(os.Environ(), asLatchctl+"=1", variable+"="+strings.Join(nodes, " "), "GORACE=atexit_sleep_ms=0")
	return cmd
}

// result has the output and the exit code of one run of latchctl.
type result struct {
	out, err string
	exit     int
}

// call runs latchctl to its end, and returns the result.
func call(t *testing.T, nodes []string, args ...string) result {
	t.Helper()
	cmd := latchctl(t, nodes, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// exits runs latchctl, and fails the test unless the exit code is want. It returns the result.
func exits(t *testing.T, want int, nodes []string, args ...string) result {
	t.Helper()
	s := call(t, nodes, args...)
	if s.exit != want {
		t.Fatalf("latchctl %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), s.exit, want, s.out, s.err)
	}
	return s
}

// checkContains fails the test unless text contains each string in parts.
func checkContains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%s", part, text)
		}
	}
}

// site is one kind of server for locks.
type site struct {
	nodes  []string // URLs
	direct []*redis.Client
	// makes a Locker with clients of its own, like the Locker of another process
	locker func(t *testing.T) *locker.Engine
}

// waiters is how many processes the site shows that wait for a key: there is no queue on a quorum.
func (s site) waiters() int {
	if len(s.nodes) > 1 {
		return 0
	}
	return 1
}

// sites returns all kinds of servers.
func sites(t *testing.T) map[string]site {
	t.Helper()
	one, cluster, sentinel := redistest.Start(t), redistest.StartCluster(t), redistest.StartSentinel(t)
	three := []*redistest.Server{redistest.Start(t), redistest.Start(t), redistest.Start(t)}
	var nodes []string
	var clients []locker.Client
	all := site{}
	for _, s := range three {
		nodes = append(nodes, "redis://"+s.Addr())
		clients = append(clients, s.Client(t))
		all.direct = append(all.direct, s.Client(t))
	}
	if err := locker.EnrollRedlock(t.Context(), clients); err != nil {
		t.Fatal(err)
	}
	all.nodes = nodes
	all.locker = func(t *testing.T) *locker.Engine {
		var own []locker.Client
		for _, s := range three {
			own = append(own, s.Client(t))
		}
		l, err := locker.NewRedlock(own)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		return l
	}
	var masters []*redis.Client
	for _, s := range cluster.Masters {
		masters = append(masters, s.Client(t))
	}
	return map[string]site{
		"one server": {[]string{"redis://" + one.Addr()}, []*redis.Client{one.Client(t)},
			func(t *testing.T) *locker.Engine { return locktest.Single(t, one.Client(t)) }},
		"Cluster": {[]string{"redis://" + cluster.Addrs()[0]}, masters,
			func(t *testing.T) *locker.Engine { return locktest.Single(t, cluster.Client(t)) }},
		"Sentinel": {[]string{"redis://" + sentinel.Addrs()[0] + "?master_name=" + redistest.SentinelName}, []*redis.Client{sentinel.Client(t)},
			func(t *testing.T) *locker.Engine { return locktest.Single(t, sentinel.Client(t)) }},
		"quorum": all,
	}
}

// queue returns what each waiter for key has on the servers: a token, and the inbox of its process.
func (s site) queue(t *testing.T, key string) (waiters [][2]string) {
	t.Helper()
	for _, c := range s.direct {
		// An error is ignored: on a Cluster, a master that does not serve the key answers
		// MOVED.
		queue, _ := c.ZRange(t.Context(), "latchkit:q:{"+key+"}:"+key, 0, -1).Result()
		for _, entry := range queue {
			token, inbox, _ := strings.Cut(entry, "|")
			inbox, _, _ = strings.Cut(inbox, "|")
			waiters = append(waiters, [2]string{token, inbox})
		}
	}
	return waiters
}

// tokens returns the secret tokens that the servers store for a key.
func (s site) tokens(t *testing.T, key string) (all []string) {
	t.Helper()
	for _, c := range s.direct {
		if lease, err := c.Get(t.Context(), key).Result(); err == nil {
			token, _, _ := strings.Cut(lease, ":")
			all = append(all, token)
		}
	}
	for _, w := range s.queue(t, key) {
		all = append(all, w[0], w[1])
	}
	if len(all) < 1+2*s.waiters() {
		t.Fatalf("tokens of %s: %q; want that of the holder, and that and the inbox of the waiter", key, all)
	}
	return all
}

// wait makes l wait for key until leave is called.
func (s site) wait(t *testing.T, l *locker.Engine, key string) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if waiter, err := l.Acquire(ctx, locker.Rule{Key: key, Metadata: "waiter 8"}); err == nil {
			_ = waiter.Release(context.Background())
		}
	}()
	locktest.Eventually(t, "the waiter is in the queue", func() bool { return len(s.queue(t, key)) == s.waiters() })
	return func() {
		cancel()
		<-ended
	}
}

// lockedAndWaitedFor acquires key, and makes another process wait for this key. It returns the
// lease.
func (s site) lockedAndWaitedFor(t *testing.T, key string) *locker.Lease {
	t.Helper()
	lease := locktest.Acquire(t, s.locker(t), locker.Rule{Key: key, Metadata: "holder \x1b[31m7\u009b"})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = lease.Release(ctx) // a test may have broken the lease
	})
	// A waiter that came before the subscription of its process polls, without an inbox. The next one of
	// the process has an inbox.
	l := s.locker(t)
	locktest.Eventually(t, "a waiter is in the queue, with an inbox", func() bool {
		leave := s.wait(t, l, key)
		if slices.ContainsFunc(s.queue(t, key), func(w [2]string) bool { return w[1] == "-" }) {
			leave()
			return false
		}
		t.Cleanup(leave)
		return true
	})
	return lease
}
