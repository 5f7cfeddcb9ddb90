package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/latchkit/latchkit/locker"
)

// forwarded are the signals that latchctl passes on to the command.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
}

// startError is the reason why the command could not be started.
type startError struct{ err error }

func (e *startError) Error() string { return "the command cannot be started: " + e.err.Error() }
func (e *startError) Unwrap() error { return e.err }

// guard runs the command until it ends. If ctx, the context of the lease, ends first, guard ends
// the command. It returns the command's exit code.
func (r *running) guard(ctx context.Context, signals <-chan os.Signal) (exit int, err error) {
	lease, _ := locker.FromContext(ctx)
	cmd := exec.Command(r.command[0], r.command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "LATCHKIT_KEY="+r.rule.Key, "LATCHKIT_FENCE="+strconv.FormatUint(lease.Fence(), 10))
	atTerminal := term.IsTerminal(int(os.Stdin.Fd()))
	cmd.SysProcAttr = attributes(!atTerminal)
	ended := make(chan error, 1)
	started := make(chan error)
	go func() {
		// On Linux, the kernel kills the command when the thread that has started the command ends.
		// So this goroutine keeps its thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return 0, &startError{err}
	}
	group := family{pid: cmd.Process.Pid, shared: atTerminal}
	lost := ctx.Done()
	var late <-chan time.Time
	// after SIGTERM: the time at which latchctl kills the command if it still runs
	var deadline time.Time
	for {
		select {
		case err := <-ended:
			if lost == nil {
				group.outlive(deadline)
			}
			return exitCode(cmd, err)
		case s := <-signals:
			// the lease still lasts; after its end, the command has already got SIGTERM
			if lost != nil {
				group.forward(s.(syscall.Signal))
			}
		case <-lost:
			lost = nil
			fmt.Fprintf(r.messages, "latchctl: %v: the command gets SIGTERM, and SIGKILL in %v\n", printable(context.Cause(ctx).Error()), r.grace)
			r.lossReported = true
			group.terminate()
			late, deadline = time.After(r.grace), time.Now().Add(r.grace)
		case <-late:
			group.send(syscall.SIGKILL)
		}
	}
}

// family is the command and its descendants. Without a terminal, these processes are a process
// group of their own. At a terminal, they stay in the group that the shell has made for latchctl.
// So Ctrl-C and Ctrl-Z reach latchctl and the family, and the shell can continue all of them.
//
// A signal to processes that have ended has no effect, and is not an error.
type family struct {
	pid    int
	shared bool // the family is in latchctl's own process group
}

// forward passes a signal on to the command. At a terminal, forward does not pass on SIGINT and
// SIGQUIT, because the terminal itself sends them to the command when the user presses Ctrl-C
// or Ctrl-\.
func (f family) forward(s syscall.Signal) {
	if !f.shared || s != syscall.SIGINT && s != syscall.SIGQUIT {
		f.send(s)
	}
}

// send sends s to all processes of the group. At a terminal it sends s to the command only, because
// latchctl is in the same group.
func (f family) send(s syscall.Signal) {
	if f.shared {
		_ = syscall.Kill(f.pid, s)
	} else {
		_ = syscall.Kill(-f.pid, s)
	}
}

// terminate sends SIGTERM and SIGCONT to all processes of the group. A stopped process handles
// SIGTERM only when SIGCONT lets it continue. latchctl itself ignores this SIGTERM.
func (f family) terminate() {
	group := -f.pid
	if f.shared {
		group = 0 // latchctl's own group
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGCONT} {
		_ = syscall.Kill(group, s)
	}
}

// outlive waits until the descendants have ended too. At the time that the parameter late
// gives, it kills the descendants that still run. At a terminal, outlive does nothing, because
// the descendants are in the same group as latchctl, and cannot be distinguished from other
// processes.
func (f family) outlive(late time.Time) {
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for !f.shared && syscall.Kill(-f.pid, 0) == nil {
		if time.Now().After(late) {
			f.send(syscall.SIGKILL)
			return
		}
		<-poll.C
	}
}

// exitCode returns the exit code with which the command has ended, as a shell would report it.
func exitCode(cmd *exec.Cmd, err error) (int, error) {
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		return 0, err
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}
