package main

import (
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// top draws the locks at a terminal and shows changes. While the server is down, top still
// shows the last locks. The key q ends top, and restores the terminal.
func TestTop(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := site{nodes: []string{"redis://" + server.Addr()}, locker: func(t *testing.T) *locker.Engine { return locktest.Single(t, server.Client(t)) }}
	s.lockedAndWaitedFor(t, "order:1")
	cmd := latchctl(t, s.nodes, "top", "order:*", "--every", "100ms", "--timeout", "2s")
	term := atTerminal(t, cmd)
	term.await("order:1")
	term.await("1 keys, 1 waiting processes, by waiters")
	lease := locktest.Acquire(t, s.locker(t), locker.Rule{Key: "order:2", Metadata: "newcomer"})
	term.await("newcomer")
	term.forget() // top draws only what changes, so the next texts on the screen are changes
	term.typeText("k")
	term.await("key")
	locktest.Release(t, lease)
	server.Kill()
	term.await("! ")
	server.Restart()
	locktest.Eventually(t, "the server answers again", func() bool { return server.Client(t).Ping(t.Context()).Err() == nil })
	term.typeText("q")
	if screen, exit := term.awaitEnd(); exit != 0 || !strings.Contains(screen, "\x1b[?1049l") {
		t.Errorf("exit code %d; the terminal is as top left it: %q", exit, screen)
	}
	checkContains(t, exits(t, 64, s.nodes, "top").err, "use ls")
}

// The keys with the most waiters come first on the screen. No line is too long. If not all locks
// fit, the screen shows the number of hidden locks.
func TestTopsScreen(t *testing.T) {
	t.Parallel()
	w := topModel{order: "waiters", pattern: "*", width: 40, height: 8}
	w.lastLook.at = time.Now()
	for i := range 9 {
		w.lastLook.locks = append(w.lastLook.locks, lock{key: strings.Repeat(string(rune('a'+i)), 30), Info: locker.Info{Held: true, Waiters: i}})
	}
	lines := strings.Split(w.screen(), "\n")
	if len(lines) != 8 || !strings.HasPrefix(lines[4], "iii") || !strings.HasPrefix(lines[5], "hhh") || lines[7] != "… and 6 more" {
		t.Errorf("the screen:\n%s", strings.Join(lines, "\n"))
	}
	for _, line := range lines {
		if n := len([]rune(line)); n > 40 {
			t.Errorf("a line of %d letters on a screen of 40: %s", n, line)
		}
	}
}
