package proc

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Child is a running [Program], or a program that [Start] has started. Expect and Wait may end the
// test, so call them on the test's goroutine. The other methods report failures by t.Error, and may
// be called from any goroutine.
type Child struct {
	t       testing.TB
	name    string
	process *Process
	stdin   io.Writer
	output  *lines

	// endKnown is true when the test has ended the child or has seen the child's end. If it is
	// false, an exit code other than 0 is a failure.
	endKnown atomic.Bool
}

// Start starts the program in a new process, which is killed at the end of the test if it still
// runs. The child's standard error goes to t.Log. A panic or a data race in the child fails the
// test.
func (p Program) Start(t testing.TB, args ...string) *Child {
	t.Helper()
	if !inMain {
		t.Fatal("proc: this test binary does not call proc.Main: write func TestMain(m *testing.M) { os.Exit(proc.Main(m).Run()) }")
	}
	cmd := exec.Command(os.Args[0], args...)
	// With this setting a race ends the child at once. Otherwise the child would report a race only
	// when it ends by itself, and often the test kills the child earlier.
	cmd.Env = append(os.Environ(), environment+"="+p.name, "GORACE=halt_on_error=1")
	return Start(t, p.name, cmd)
}

// Start starts a program that is not the test binary. The program is killed at the end of the test
// if it still runs. The program reads lines from its standard input and writes lines to its
// standard output. Its standard error goes to t.Log, under the given name.
func Start(t testing.TB, name string, cmd *exec.Cmd) *Child {
	t.Helper()
	c := &Child{t: t, name: name, output: newLines()}
	cmd.Stdout = c.output
	cmd.Stderr = &logger{t: t, name: name}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("proc: start %s: %v", name, err)
	}
	c.stdin = stdin
	if c.process, err = Launch(cmd); err != nil {
		t.Fatalf("proc: start %s: %v", name, err)
	}
	t.Cleanup(c.cleanUp)
	return c
}

// Pid is the child's process id.
func (c *Child) Pid() int { return c.process.Pid() }

// Exited is closed once the child has ended.
func (c *Child) Exited() <-chan struct{} { return c.process.Exited() }

// Expect waits for a line that begins with prefix, and returns the rest of the line, trimmed. Other
// lines are logged and skipped. Expect ends the test if the child ends first, or if no such line
// comes within half a minute.
func (c *Child) Expect(t testing.TB, prefix string) string {
	t.Helper()
	deadline := time.After(patience)
	for {
		ended := c.ended() // ended is read before the last line is taken, so that no line is missed
		line, ok := c.output.take()
		switch {
		case ok && strings.HasPrefix(line, prefix):
			return strings.TrimSpace(strings.TrimPrefix(line, prefix))
		case ok:
			t.Logf("%s says: %s", c.name, line)
			continue
		case ended:
			t.Fatalf("%s ended with exit code %d before it said %q", c.name, c.process.ExitCode(), prefix)
		}
		select {
		case <-c.output.more:
		case <-c.process.Exited():
		case <-deadline:
			t.Fatalf("%s did not say %q within %v", c.name, prefix, patience)
		}
	}
}

// Send sends a line to the child, which reads the line with [Listen].
func (c *Child) Send(line string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.stdin, line); err != nil {
		c.t.Errorf("send %q to %s: %v", line, c.name, err)
	}
}

// Pause stops the child with SIGSTOP, and returns when the child has stopped.
func (c *Child) Pause() { c.t.Helper(); c.report(c.process.Pause()) }

// AwaitStop returns when the child has stopped itself with SIGSTOP. AwaitStop is for a child that
// must stop at an exact place in its code.
func (c *Child) AwaitStop() { c.t.Helper(); c.report(c.process.awaitStop()) }

// Resume continues a paused child with SIGCONT.
func (c *Child) Resume() { c.t.Helper(); c.report(c.process.Resume()) }

// Kill ends the child with SIGKILL, paused or not, and waits until it is gone.
func (c *Child) Kill() {
	c.t.Helper()
	c.endKnown.Store(true)
	c.report(c.process.Kill())
}

// Wait waits for the end of the child, and returns its exit code, or -1 if a signal ended the
// child.
func (c *Child) Wait(t testing.TB) int {
	t.Helper()
	select {
	case <-c.process.Exited():
	case <-time.After(patience):
		t.Fatalf("%s did not end within %v", c.name, patience)
	}
	c.endKnown.Store(true)
	return c.process.ExitCode()
}

func (c *Child) ended() bool {
	select {
	case <-c.process.Exited():
		return true
	default:
		return false
	}
}

func (c *Child) report(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Errorf("%s: %v", c.name, err)
	}
}

// cleanUp runs at the end of the test. SIGKILL also ends a paused process.
func (c *Child) cleanUp() {
	if c.ended() && !c.endKnown.Load() && c.process.ExitCode() != 0 {
		c.t.Errorf("%s ended on its own, with exit code %d", c.name, c.process.ExitCode())
	}
	c.report(c.process.Kill())
}
