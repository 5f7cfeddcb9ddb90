package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// break takes a lease away on every kind of server, and the waiter gets the key. If the given fence
// is not the fence of the present holder, break changes nothing.
func TestBreak(t *testing.T) {
	t.Parallel()
	for name, s := range sites(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := "order:" + strings.ReplaceAll(name, " ", "-")
			lease := s.lockedAndWaitedFor(t, key)
			fence := fmt.Sprint(lease.Fence())
			checkContains(t, exits(t, 64, s.nodes, "break", key, "--reason", "gone").err, "--fence "+fence)
			checkContains(t, exits(t, 64, s.nodes, "break", key, "--fence", fence).err, "--reason")
			checkContains(t, exits(t, 64, s.nodes, "break", key, "--fence", fence, "--reason", "gone").err, "--yes")
			checkContains(t, exits(t, 1, s.nodes, "break", key, "--fence", "17", "--reason", "gone", "--yes").err, "not 17")
			later := fmt.Sprint(lease.Fence() + 1<<40)
			checkContains(t, exits(t, 1, s.nodes, "break", key, "--fence", later, "--reason", "gone", "--yes").err, "does not hold")
			if err := lease.Context().Err(); err != nil {
				t.Fatalf("the lease ended before it was broken: %v", err)
			}
			checkContains(t, exits(t, 0, s.nodes, "break", key, "--fence", fence, "--reason", "pod is gone", "--yes").out, "broken")
			if err := lease.Extend(t.Context(), 30*time.Second); !errors.Is(err, locker.ErrRevoked) || !strings.Contains(err.Error(), "pod is gone") {
				t.Errorf("the holder's error is %v", err)
			}
			locktest.Eventually(t, "the waiter has the key", func() bool {
				out := call(t, s.nodes, "show", key).out
				return strings.Contains(out, "free") || strings.Contains(out, "waiter 8")
			})
		})
	}
}

// At a terminal, break shows the holder and asks for confirmation. It breaks the lease only after
// "yes".
func TestBreakAsks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	nodes := []string{"redis://" + server.Addr()}
	l := locktest.Single(t, server.Client(t))
	lease := locktest.Acquire(t, l, locker.Rule{Key: "order:1", Metadata: "checkout-7"})
	ask := func(answer string) (screen string, exit int) {
		cmd := latchctl(t, nodes, "break", lease.Key(), "--fence", fmt.Sprint(lease.Fence()), "--reason", "gone")
		term := atTerminal(t, cmd)
		term.await("[y/N]")
		term.typeText(answer)
		return term.awaitEnd()
	}
	for _, answer := range []string{"\n", "n\n", "yo\n", "\x04"} {
		screen, exit := ask(answer)
		if checkContains(t, screen, "checkout-7", "Take its lease away?", "nothing was broken"); exit != exitFailed {
			t.Errorf("exit code %d after the answer %q", exit, answer)
		}
	}
	if info, err := l.Inspect(t.Context(), "order:1"); err != nil || !info.Held {
		t.Fatalf("the lease is gone after a no: %+v, %v", info, err)
	}
	screen, exit := ask("yes\n")
	if checkContains(t, screen, "broken"); exit != 0 {
		t.Errorf("exit code %d after yes", exit)
	}
	if info, err := l.Inspect(t.Context(), "order:1"); err != nil || info.Held {
		t.Fatalf("the lease is there after a yes: %+v, %v", info, err)
	}

	// It says what a yes takes away.
	readers, err := locker.NewReadWrite(server.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	permits, err := locker.NewSemaphore(server.Client(t), 2)
	if err != nil {
		t.Fatal(err)
	}
	lease = locktest.Acquire(t, readers, locker.Rule{Key: "page", Mode: locker.Shared})
	screen, _ = ask("n\n")
	checkContains(t, screen, "The readers", "all leases (1)")
	lease = locktest.Acquire(t, permits, locker.Rule{Key: "pool"})
	screen, _ = ask("n\n")
	checkContains(t, screen, fmt.Sprintf("The holder of fence %d", lease.Fence()), "Take its permit away?")
	locktest.Release(t, lease)
	lease = locktest.Acquire(t, l, locker.Rule{Key: "today", KeepFor: time.Hour})
	locktest.Release(t, lease)
	screen, _ = ask("n\n")
	checkContains(t, screen, "Free it before its time is over?")
}

// terminal is a pseudo-terminal at which a program runs.
type terminal struct {
	t   *testing.T
	cmd *exec.Cmd
	tty *os.File

	mu     sync.Mutex
	screen bytes.Buffer
	closed chan struct{}
}

// atTerminal starts the program cmd at a pseudo-terminal with 120 columns.
func atTerminal(t *testing.T, cmd *exec.Cmd) *terminal {
	t.Helper()
	cmd.Env = append(cmd.Env, "TERM=xterm-256color")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 24, Cols: 120})
	if err != nil {
		t.Fatal(err)
	}
	term := &terminal{t: t, cmd: cmd, tty: tty, closed: make(chan struct{})}
	t.Cleanup(func() { _ = cmd.Process.Kill(); tty.Close(); <-term.closed })
	go func() {
		defer close(term.closed)
		_, _ = io.Copy(term, tty) // reads the output until the program has closed the terminal
	}()
	return term
}

// Write adds text, the output of the program, to the screen.
func (term *terminal) Write(text []byte) (int, error) {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.screen.Write(text)
}

func (term *terminal) screenText() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.screen.String()
}

// await waits until the screen contains text.
func (term *terminal) await(text string) {
	term.t.Helper()
	for until := time.Now().Add(20 * time.Second); !strings.Contains(term.screenText(), text); {
		if time.Now().After(until) {
			term.t.Fatalf("%q is not on the screen:\n%q", text, term.screenText())
		}
		<-time.After(10 * time.Millisecond)
	}
}

// typeText sends text to the program as if a user had typed it.
func (term *terminal) typeText(text string) {
	term.t.Helper()
	if _, err := term.tty.WriteString(text); err != nil {
		term.t.Fatal(err)
	}
}

// awaitEnd waits until the program has ended. It returns the text on the screen, and the exit
// code.
func (term *terminal) awaitEnd() (screen string, exit int) {
	term.t.Helper()
	ctx, cancel := context.WithTimeout(term.t.Context(), 20*time.Second)
	defer cancel()
	ended := make(chan struct{})
	// the error is not needed, because awaitEnd reads the exit code
	go func() { _ = term.cmd.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-ctx.Done():
		term.t.Fatalf("the program does not end; its screen:\n%q", term.screenText())
	}
	<-term.closed
	return term.screenText(), term.cmd.ProcessState.ExitCode()
}
