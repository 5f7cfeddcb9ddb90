package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// guarded is a process of "latchctl run" in the background, whose command is a shell script.
type guarded struct {
	t        *testing.T
	cmd      *exec.Cmd
	messages bytes.Buffer
	folder   string
}

// startRun starts latchctl run with a shell script. The script writes its files into a folder of
// the test.
func startRun(t *testing.T, nodes []string, script string, flags ...string) *guarded {
	t.Helper()
	g := &guarded{t: t, folder: t.TempDir()}
	args := append(append([]string{"run", "job"}, flags...), "--", "sh", "-c", script)
	g.cmd = latchctl(t, nodes, args...)
	g.cmd.Dir, g.cmd.Stderr = g.folder, &g.messages
	if err := g.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if g.cmd.ProcessState == nil {
			_ = g.cmd.Process.Kill()
			_ = g.cmd.Wait()
		}
	})
	return g
}

// file waits until the script has written a file, and returns the file's text.
func (g *guarded) file(name string) (text string) {
	g.t.Helper()
	locktest.Eventually(g.t, "the command writes "+name, func() bool {
		data, err := os.ReadFile(filepath.Join(g.folder, name))
		text = strings.TrimSpace(string(data))
		return err == nil && text != ""
	})
	return text
}

// pid waits until the script has written a process id into a file, and returns the id.
func (g *guarded) pid(name string) int {
	g.t.Helper()
	pid, err := strconv.Atoi(g.file(name))
	if err != nil {
		g.t.Fatal(err)
	}
	return pid
}

// awaitEnd waits until latchctl has ended, and returns its messages. It fails the test unless the
// exit code is want.
func (g *guarded) awaitEnd(want int) string {
	g.t.Helper()
	var failed *exec.ExitError
	if err := g.cmd.Wait(); err != nil && !errors.As(err, &failed) {
		g.t.Fatal(err)
	}
	if got := g.cmd.ProcessState.ExitCode(); got != want {
		g.t.Fatalf("exit code %d, want %d: %s", got, want, g.messages.String())
	}
	return g.messages.String()
}

// awaitExit waits until the process pid has ended.
func awaitExit(t *testing.T, pid int) {
	t.Helper()
	locktest.Eventually(t, fmt.Sprintf("process %d ends", pid), func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(state), ") Z ")
	})
}

func server(t *testing.T) (nodes []string, c *redis.Client) {
	t.Helper()
	s := redistest.Start(t)
	return []string{"redis://" + s.Addr()}, s.Client(t)
}

// The exit codes are the same as in flock.
func TestRunExitCodes(t *testing.T) {
	t.Parallel()
	nodes, c := server(t)
	for script, want := range map[string]int{"true": 0, "exit 7": 7, "kill -TERM $$": 128 + 15, "kill -KILL $$": 128 + 9} {
		exits(t, want, nodes, "run", "job", "--", "sh", "-c", script)
	}
	checkContains(t, exits(t, 127, nodes, "run", "job", "--", "/no/such/program").err, "cannot be started")
	checkContains(t, exits(t, 127, nodes, "run", "job", "--", "no-such-program").err, "cannot be started")
	checkContains(t, exits(t, 126, nodes, "run", "job", "--", t.TempDir()).err, "cannot be started")
	checkContains(t, exits(t, 69, []string{"redis://127.0.0.1:1"}, "run", "job", "--wait", "1s", "--", "true").err, "the lock server is unavailable")
	if n := c.Exists(t.Context(), "job").Val(); n != 0 {
		t.Error("a lease was left")
	}
	lease := locktest.Acquire(t, locktest.Single(t, c), locker.Rule{Key: "job"})
	checkContains(t, exits(t, 1, nodes, "run", "job", "-n", "--", "touch", "/dev/null/x").err, "has the lock")
	exits(t, 1, nodes, "run", "job", "--wait", "2s", "--", "true")
	exits(t, 75, nodes, "run", "job", "-n", "-E", "75", "--", "true")
	exits(t, 1, nodes, "run", "job", "-n", "--shared", "--", "true")
	locktest.Release(t, lease)
	out := exits(t, 0, nodes, "run", "job", "--", "sh", "-c", "echo $LATCHKIT_KEY $LATCHKIT_FENCE").out
	key, fence, _ := strings.Cut(strings.TrimSpace(out), " ")
	if n, err := strconv.ParseUint(fence, 10, 64); err != nil || key != "job" || n <= lease.Fence() {
		t.Errorf("the command found %q, and the holder before it had fence %d", out, lease.Fence())
	}
}

// With --once, a job that has succeeded does not run again, but a job that has failed runs again.
func TestRunOnce(t *testing.T) {
	t.Parallel()
	nodes, _ := server(t)
	log := filepath.Join(t.TempDir(), "log")
	job := func(code int) []string {
		return []string{"run", "job", "--once", "1h", "--", "sh", "-c", fmt.Sprintf("echo ran >> %s; exit %d", log, code)}
	}
	exits(t, 3, nodes, job(3)...)
	exits(t, 0, nodes, job(0)...)
	checkContains(t, exits(t, 0, nodes, job(0)...).err, "is done already")
	if text, err := os.ReadFile(log); err != nil || string(text) != "ran\nran\n" {
		t.Errorf("the log: %q, %v", text, err)
	}
}

// Two callers of "latchctl run" compete, and their commands never run at the same time. If two
// commands ran at the same time, an increment of the number in a file would be lost.
func TestRunExcludes(t *testing.T) {
	t.Parallel()
	for name, s := range sites(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			counter := filepath.Join(t.TempDir(), "counter")
			if err := os.WriteFile(counter, []byte("0\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			const each = 5
			var racers sync.WaitGroup
			for range 2 {
				racers.Go(func() {
					for range each {
						s := call(t, s.nodes, "run", "job", "--", "sh", "-c", "read n < "+counter+"; sleep 0.01; echo $((n+1)) > "+counter)
						if s.exit != 0 {
							t.Errorf("exit code %d: %s", s.exit, s.err)
						}
					}
				})
			}
			racers.Wait()
			if text, err := os.ReadFile(counter); err != nil || string(text) != fmt.Sprintln(2*each) {
				t.Errorf("the counter is %q, want %d; %v", text, 2*each, err)
			}
		})
	}
}

// Readers run at the same time.
func TestRunShared(t *testing.T) {
	t.Parallel()
	nodes, _ := server(t)
	first := startRun(t, nodes, "echo x > started; cat > /dev/null", "--shared")
	first.file("started")
	exits(t, 0, nodes, "run", "job", "--shared", "-n", "--", "true")
	first.awaitEnd(0)
}

// notes is a script that writes down the signals that it receives. SIGTERM ends it with code 9.
const notes = `trap 'echo term > term; exit 9' TERM; trap 'echo usr1 > usr1' USR1; (trap "" TERM; sleep 100) &
echo $! > child; echo $$ > pid; while :; do wait; done`

// When the lease is lost, the command and its descendants get SIGTERM. A process that ignores
// SIGTERM gets SIGKILL.
func TestRunOfALostLease(t *testing.T) {
	t.Parallel()
	nodes, c := server(t)
	g := startRun(t, nodes, notes, "--ttl", "1s", "--grace", "500ms", "--lost-exit-code", "76")
	child := g.pid("child")
	if err := c.Del(t.Context(), "job").Err(); err != nil {
		t.Fatal(err)
	}
	told := g.awaitEnd(76)
	if checkContains(t, told, "lost", "SIGTERM"); strings.Count(told, "latchctl: ") != 1 {
		t.Errorf("the loss is told more than once:\n%s", told)
	}
	if g.file("term") != "term" {
		t.Error("the command did not get SIGTERM")
	}
	awaitExit(t, child) // the child ignores SIGTERM, so only SIGKILL can have ended it
}

// A command that does not end after SIGTERM is killed when the grace period is over.
func TestRunKillsAfterTheGrace(t *testing.T) {
	t.Parallel()
	nodes, c := server(t)
	g := startRun(t, nodes, `trap "" TERM; echo $$ > pid; while :; do sleep 0.1; done`, "--ttl", "1s", "--grace", "300ms")
	pid := g.pid("pid")
	info, err := locktest.Single(t, c).Inspect(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if name := info.Metadata; !strings.HasPrefix(name, "sh@") || !strings.HasSuffix(name, fmt.Sprintf(":%d", g.cmd.Process.Pid)) {
		t.Errorf("the holder's name is %q, want sh@HOST:%d", name, g.cmd.Process.Pid)
	}
	exits(t, 0, nodes, "break", "job", "--fence", fmt.Sprint(info.Fence), "--reason", "it hangs", "--yes")
	checkContains(t, g.awaitEnd(1), "it hangs")
	awaitExit(t, pid)
}

// latchctl passes a signal on to the command, and ends with the exit code of the command.
func TestRunForwardsSignals(t *testing.T) {
	t.Parallel()
	nodes, c := server(t)
	g := startRun(t, nodes, notes)
	g.pid("pid")
	for _, s := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM} {
		if err := g.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		if s == syscall.SIGUSR1 {
			g.file("usr1")
		}
	}
	g.awaitEnd(9)
	if n := c.Exists(t.Context(), "job").Val(); n != 0 {
		t.Error("the lease was not released")
	}
	if err := syscall.Kill(g.pid("child"), syscall.SIGKILL); err != nil {
		t.Log(err)
	}
}

// A signal ends the wait for the lock, and leaves nothing in the queue.
func TestRunInterruptedWhileItWaits(t *testing.T) {
	t.Parallel()
	nodes, c := server(t)
	lease := locktest.Acquire(t, locktest.Single(t, c), locker.Rule{Key: "job"})
	g := startRun(t, nodes, "echo x > ran")
	locktest.Eventually(t, "latchctl waits", func() bool { return locktest.Queued(t, c, "job") == 1 })
	if err := g.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	g.awaitEnd(128 + 2)
	if n := locktest.Queued(t, c, "job"); n != 0 {
		t.Errorf("%d waiters are left", n)
	}
	locktest.Release(t, lease)
	if _, err := os.Stat(filepath.Join(g.folder, "ran")); err == nil {
		t.Error("the command ran")
	}
}

// latchctl is stopped for longer than the TTL, and another process gets the lock meanwhile. When
// latchctl continues, it finds that its lease is lost, and ends the command.
func TestRunStoppedForLongerThanTheTTL(t *testing.T) {
	t.Parallel()
	nodes, _ := server(t)
	g := startRun(t, nodes, notes, "--ttl", "1s")
	child := g.pid("child")
	if err := g.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	exits(t, 0, nodes, "run", "job", "--", "true")
	if err := g.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	checkContains(t, g.awaitEnd(1), "lost")
	g.file("term")
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Log(err)
	}
}

// When latchctl is killed, its command dies, and the lock is free after the TTL.
func TestRunKilled(t *testing.T) {
	t.Parallel()
	nodes, _ := server(t)
	g := startRun(t, nodes, "echo $$ > pid; exec sleep 100", "--ttl", "1s")
	pid := g.pid("pid")
	if err := g.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	awaitExit(t, pid)
	exits(t, 0, nodes, "run", "job", "--wait", "20s", "--", "true")
}

// At a terminal, Ctrl-C reaches the command once, and latchctl ends with the exit code of the
// command.
func TestRunAtATerminal(t *testing.T) {
	t.Parallel()
	nodes, c := server(t)
	cmd := latchctl(t, nodes, "run", "job", "--", "sh", "-c", `trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.1; done`)
	term := atTerminal(t, cmd)
	term.await("ready")
	term.typeText("\x03")
	if screen, exit := term.awaitEnd(); exit != 5 || strings.Count(screen, "caught") != 1 {
		t.Errorf("exit code %d, screen %q", exit, screen)
	}
	if n := c.Exists(t.Context(), "job").Val(); n != 0 {
		t.Error("the lease was not released")
	}
}

// With --limit n, n commands run at the same time. ls and show list the permits, and break takes
// one permit away.
func TestRunWithALimit(t *testing.T) {
	t.Parallel()
	nodes, _ := server(t)
	first := startRun(t, nodes, "echo x > started; sleep 100", "--limit", "2", "--metadata", "first", "--grace", "1s", "--ttl", "3s")
	first.file("started")
	second := startRun(t, nodes, "echo x > started; sleep 100", "--limit", "2", "--metadata", "second")
	second.file("started")
	exits(t, 1, nodes, "run", "job", "--limit", "2", "-n", "--", "true")
	checkContains(t, exits(t, 0, nodes, "ls").out, "permits 2/2")
	checkContains(t, exits(t, 0, nodes, "show", "job").out, "2 of 2 units", "SINCE", "first", "second")
	checkContains(t, exits(t, 64, nodes, "break", "job", "--reason", "x").err, "lists the permits")
	var l lockJSON
	if err := json.Unmarshal([]byte(exits(t, 0, nodes, "show", "job", "--json").out), &l); err != nil {
		t.Fatal(err)
	}
	for _, p := range l.Permits {
		if p.Metadata == "first" {
			exits(t, 0, nodes, "break", "job", "--fence", fmt.Sprint(p.Fence), "--reason", "too long", "--yes")
		}
	}
	exits(t, 0, nodes, "run", "job", "--limit", "2", "-n", "--", "true")
	checkContains(t, first.awaitEnd(1), "too long")
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	second.awaitEnd(128 + 15)
}
