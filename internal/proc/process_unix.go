//go:build unix && !linux

package proc

import (
	"bytes"
	"os/exec"
	"strconv"
	"syscall"
)

// attributes returns the attributes of a new process, which give the process its own group. Only
// Linux can kill the process when the test binary dies. On other systems, the servers of a killed
// test binary continue to run.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// stopped reports whether the process pid has stopped.
func stopped(pid int) bool {
	state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && bytes.HasPrefix(bytes.TrimSpace(state), []byte("T"))
}
