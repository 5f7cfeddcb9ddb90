//go:build unix && !linux

package proc

import (
	"bytes"
	"os/exec"
	"strconv"
	"syscall"
)

// attributes sets the process apart. Only Linux can also tie its life to ours:
// elsewhere a test binary that is killed leaves the servers it started running.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// stopped says whether the process stands still.
func stopped(pid int) bool {
	state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && bytes.HasPrefix(bytes.TrimSpace(state), []byte("T"))
}
