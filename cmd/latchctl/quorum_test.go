package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// freshServers starts servers, and returns their URLs and clients.
func freshServers(t *testing.T, n int) (nodes []string, cs []*redis.Client) {
	t.Helper()
	for range n {
		s := redistest.Start(t)
		nodes, cs = append(nodes, "redis://"+s.Addr()), append(cs, s.Client(t))
	}
	return nodes, cs
}

// enroll makes a quorum of new servers. It refuses a server that holds leases and a server that was
// a node, and then changes nothing, as without a terminal to ask at.
func TestEnrollTakesOnlyNewServers(t *testing.T) {
	t.Parallel()
	nodes, cs := freshServers(t, 4)
	three := nodes[:3]
	untouched := func(after string) {
		t.Helper()
		for _, c := range cs[:2] {
			if keys := c.Keys(t.Context(), "*").Val(); len(keys) > 0 {
				t.Fatalf("%s has written %q", after, keys)
			}
		}
	}
	lease := locktest.Acquire(t, locktest.Single(t, cs[2]), locker.Rule{Key: "order:1"})
	checkContains(t, exits(t, 69, three, "enroll", "--yes").err, "holds 1 leases, such as that of order:1", "nothing was changed")
	untouched("enroll of a server with a lease")
	locktest.Release(t, lease)
	checkContains(t, exits(t, 64, three[:1], "enroll", "--yes").err, "EnrollRedlock", "1 clients")
	checkContains(t, exits(t, 64, three, "enroll").err, "give --yes")
	untouched("enroll without a terminal")
	checkContains(t, exits(t, 0, three, "enroll", "--yes").out, "all 3 servers vote")
	again := exits(t, 69, []string{nodes[0], nodes[1], nodes[3]}, "enroll", "--yes")
	checkContains(t, again.err, "nodes already", "nothing was changed")
	if keys := cs[3].Keys(t.Context(), "*").Val(); len(keys) > 0 {
		t.Errorf("a refused enroll has written %q", keys)
	}
}

// The nodes keep the longest TTL of their enrolment, until an operator changes it at all nodes. The
// commands that only look neither need it nor change it.
func TestEnrollChangesTheLongestTTL(t *testing.T) {
	t.Parallel()
	nodes, cs := freshServers(t, 3)
	exits(t, 0, nodes, "enroll", "--yes", "--max-ttl", "2s")
	have := func(after, want string) {
		t.Helper()
		for i, c := range cs {
			if marker := c.Get(t.Context(), "latchkit:node").Val(); !strings.HasSuffix(marker, want) {
				t.Errorf("after %s, node %d has the marker %s", after, i, marker)
			}
		}
	}
	exits(t, 0, nodes, "doctor")
	exits(t, 0, nodes, "ls")
	exits(t, 0, nodes, "show", "order:1")
	have("looks", "/3/2000")
	run := []string{"run", "order:1", "--no-wait", "--ttl", "1s", "--max-ttl", "5s", "--", "true"}
	checkContains(t, exits(t, 69, nodes, run...).err, "WithMaxTTL of 2000 ms", "latchctl enroll --max-ttl")
	exits(t, 0, nodes, "enroll", "--yes", "--max-ttl", "5s")
	have("the change", "/3/5000")
	exits(t, 0, nodes, run...)
}

// After raise-fence, the next fence is larger than the given one. A fence that no lease can have
// got is refused.
func TestRaiseFence(t *testing.T) {
	t.Parallel()
	nodes, cs := freshServers(t, 1)
	l := locktest.Single(t, cs[0])
	now := uint64(time.Now().UnixMicro())
	far, near := fmt.Sprint(now+uint64(time.Hour.Microseconds())), fmt.Sprint(now)
	checkContains(t, exits(t, 64, nodes, "raise-fence", "order:1").err, "--above")
	checkContains(t, exits(t, 1, nodes, "raise-fence", "order:1", "--above", far, "--yes").err, "ahead of the server's clock")
	checkContains(t, exits(t, 64, nodes, "raise-fence", "order:1", "--above", near).err, "give --yes")
	lease := locktest.Acquire(t, l, locker.Rule{Key: "order:1"})
	if lease.Fence() > now+uint64(time.Minute.Microseconds()) {
		t.Errorf("a refused raise-fence has raised the fence to %d", lease.Fence())
	}
	locktest.Release(t, lease)
	checkContains(t, exits(t, 0, nodes, "raise-fence", "order:1", "--above", far, "--ahead", "--yes").out, "raised")
	lease = locktest.Acquire(t, l, locker.Rule{Key: "order:1"})
	if fmt.Sprint(lease.Fence()) <= far {
		t.Errorf("fence %d after %s", lease.Fence(), far)
	}
	locktest.Release(t, lease)
}

// traced is an Observer that stores the same span with each lease.
type traced struct{ traceparent string }

func (traced) Begin(ctx context.Context, _ locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	return ctx, func(locker.Outcome) {}
}

func (o traced) Traceparent(context.Context) string { return o.traceparent }

// ls --foreign lists what another program has locked although nobody waits for it, and nothing of
// latchkit. show names the trace of the holder.
func TestForeignLocksAndTraces(t *testing.T) {
	t.Parallel()
	nodes, cs := freshServers(t, 1)
	if err := cs[0].Set(t.Context(), "job:theirs", "a value", time.Minute).Err(); err != nil {
		t.Fatal(err)
	}
	const trace = "0af7651916cd43dd8448eb211c80319c"
	l := locktest.Single(t, cs[0], locker.WithMetadata(func(context.Context) string { return "us" }), locker.WithObserver(traced{"00-" + trace + "-b7ad6b7169203331-01"}))
	lease := locktest.Acquire(t, l, locker.Rule{Key: "job:ours"})
	defer locktest.Release(t, lease)
	out := exits(t, 0, nodes, "ls", "--foreign", "job:*").out
	if checkContains(t, out, "job:theirs", "foreign"); strings.Contains(out, "job:ours") || strings.Contains(out, "latchkit:") {
		t.Errorf("ls --foreign lists leases of latchkit:\n%s", out)
	}
	checkContains(t, exits(t, 0, nodes, "show", "job:ours").out, trace, "us\n")
	checkContains(t, exits(t, 0, nodes, "ls", "--json").out, `"trace_id":"`+trace+`"`)
}
