//go:build unix && !linux

package proc

import (
	"bytes"
	"os/exec"
	"strconv"
	"syscall"
)

// attributes gives the process its own group. It cannot also make the system kill the process when
// the test binary dies, as on Linux. So on other systems, the servers of a killed test binary
// continue to run.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// stopped reports whether the process has stopped.
func stopped(pid int) bool {
	state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && bytes.HasPrefix(bytes.TrimSpace(state), []byte("T"))
}
