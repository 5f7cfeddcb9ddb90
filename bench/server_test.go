package main

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/chaos"
)

// TestCommandsAreThoseOnTheWire compares two counts of the commands of clients. One count is
// from the server's statistics, and the other count is from a proxy between clients and server.
func TestCommandsAreThoseOnTheWire(t *testing.T) {
	for _, c := range contestants {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv := startServer(t)
			proxy := chaos.NewProxy(t, srv.Addr())
			before, err := srv.load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if c.noLock {
				passMessages(t, c, proxy.Addr())
			} else {
				crowd(t, c, proxy.Addr())
			}
			var wire, told int
			for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) { //nolint:forbidigo // wait, because abandoned calls may still be under way
				now, err := srv.load(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				used := now.minus(before)
				// A transaction whose key was changed is not executed, and its client looks
				// again. On a busy machine a release is sent twice, so the second look ends with
				// UNWATCH.
				wire, told = onTheWire(proxy, c.uncounted), used.commands(c.sends)
				if told <= wire && wire <= told+used.calls["unwatch"] {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("clients sent %d commands (%v), and we count %d (%v)", wire, proxy.Commands(), told, used.calls)
				}
			}
			if wire == 0 && c.name != unlocked.name {
				t.Error("nothing was sent")
			}
		})
	}
}

func onTheWire(p *chaos.Proxy, uncounted []string) (n int) {
	for command, times := range p.Commands() {
		if command = strings.ToLower(command); !housekeeping(command) && !slices.Contains(uncounted, command) {
			n += times
		}
	}
	return n
}

// crowd runs workers twice: first each worker locks a key of its own, and then all workers lock the
// same key. For a floor, crowd makes only the first run, because a floor cannot wait.
func crowd(t *testing.T, c contestant, addr string) {
	t.Helper()
	a, err := openArena(arenaFile(t))
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{"", "wanted"}
	if c.kind == floor {
		keys = keys[:1] // each worker has a key of its own, because a floor cannot wait
	}
	for _, key := range keys {
		l := open(t, c, addr, 0)
		if err := warmUp(l, 4); err != nil {
			t.Fatal(err)
		}
		many := crew{Workers: 4, Key: key, Turn: 100 * time.Millisecond}
		if _, err := many.run(l, a, monotonic()); err != nil {
			t.Fatal(err)
		}
	}
}

func passMessages(t *testing.T, c contestant, addr string) {
	t.Helper()
	two := []locks{open(t, c, addr, 0), open(t, c, addr, 1)}
	for i := range 10 {
		message, err := two[i%2].Lock(context.Background(), "")
		if err != nil {
			t.Fatal(err)
		}
		if err := message.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}
