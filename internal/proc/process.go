package proc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

const (
	// patience bounds every wait for another process. It is long enough for a
	// loaded machine under the race detector; only a failing test spends it.
	patience = 30 * time.Second

	// glance is how often a wait looks again where the kernel offers no event.
	glance = 2 * time.Millisecond
)

// Process is a running child. It is made by [Launch]; the zero value is of no
// use. Its methods may be called from any goroutine.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// Launch starts cmd in a process group of its own, so that a Ctrl-C meant for
// the tests does not reach it first and read like a fault. On Linux the child
// is killed when the test binary dies, even by SIGKILL. Of cmd.SysProcAttr only
// the Credential counts: some servers refuse to be root's.
func Launch(cmd *exec.Cmd) (*Process, error) {
	given := cmd.SysProcAttr
	cmd.SysProcAttr = attributes()
	if given != nil {
		cmd.SysProcAttr.Credential = given.Credential
	}
	// Output of an ended process that something else still holds open must not
	// keep the test waiting.
	cmd.WaitDelay = patience
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		// How it ended stays in cmd.ProcessState; ExitCode reports it.
		_ = cmd.Wait()
	}()
	return p, nil
}

// Pid is the process id, also after the process has ended.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Exited is closed once the process has ended and all its output was taken.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// ExitCode waits for the end of the process and says how it went: its exit
// code, or -1 when a signal ended it.
func (p *Process) ExitCode() int {
	<-p.exited
	return p.cmd.ProcessState.ExitCode()
}

// Pause stops the process with SIGSTOP and returns when all its threads stand
// still: the signal alone only announces that.
func (p *Process) Pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("pause process %d: %w", p.Pid(), err)
	}
	return p.awaitStop()
}

// awaitStop returns when all threads stand still.
func (p *Process) awaitStop() error {
	look := time.NewTicker(glance)
	defer look.Stop()
	deadline := time.After(patience)
	for !stopped(p.Pid()) {
		select {
		case <-look.C:
		case <-p.exited:
			return fmt.Errorf("pause process %d: it has ended", p.Pid())
		case <-deadline:
			return fmt.Errorf("pause process %d: it still runs after %v", p.Pid(), patience)
		}
	}
	return nil
}

// Resume lets a paused process run on, with SIGCONT.
func (p *Process) Resume() error {
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("resume process %d: %w", p.Pid(), err)
	}
	return nil
}

// Kill ends the process with SIGKILL, paused or not, and waits until it is
// gone. A process that has ended already is fine.
func (p *Process) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill process %d: %w", p.Pid(), err)
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("kill process %d: not gone after %v", p.Pid(), patience)
	}
}
