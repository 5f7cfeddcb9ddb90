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
	// patience is the longest wait for another process. It is long enough for a loaded machine
	// under the race detector. Only a failing test waits for that long.
	patience = 30 * time.Second

	// pollPause is the polling interval of waits for which the kernel has no event.
	pollPause = 2 * time.Millisecond
)

// Process is a running child. [Launch] makes a Process; the zero value is not usable. Its methods
// may be called from any goroutine.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// Launch starts cmd in a new process group. Otherwise a Ctrl-C for the tests would end the child
// first, and the end of the child would look like a failure. On Linux, the child is killed when
// the test binary dies, even by SIGKILL. Of cmd.SysProcAttr, Launch uses only the Credential,
// because some servers refuse to run as root.
func Launch(cmd *exec.Cmd) (*Process, error) {
	given := cmd.SysProcAttr
	cmd.SysProcAttr = attributes()
	if given != nil {
		cmd.SysProcAttr.Credential = given.Credential
	}
	// When the child has ended, another process may still keep the child's output open. The test
	// must not wait for that process.
	cmd.WaitDelay = patience
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		// The error is not needed: the result is in cmd.ProcessState, which ExitCode reads.
		_ = cmd.Wait()
	}()
	return p, nil
}

// Pid returns the process id, even after the process has ended.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Exited is closed once the process has ended and all its output was taken.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// ExitCode waits for the end of the process, and returns its exit code, or -1 if a signal ended it.
func (p *Process) ExitCode() int {
	<-p.exited
	return p.cmd.ProcessState.ExitCode()
}

// Pause stops the process with SIGSTOP. It returns when all threads of the process have stopped,
// because the signal does not stop them at once.
func (p *Process) Pause() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("pause process %d: %w", p.Pid(), err)
	}
	return p.awaitStop()
}

// awaitStop returns when all threads of the process have stopped.
func (p *Process) awaitStop() error {
	look := time.NewTicker(pollPause)
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

// Resume continues a paused process with SIGCONT.
func (p *Process) Resume() error {
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("resume process %d: %w", p.Pid(), err)
	}
	return nil
}

// Kill ends the process with SIGKILL, paused or not, and waits until it is gone. If the process has
// already ended, Kill does nothing.
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
