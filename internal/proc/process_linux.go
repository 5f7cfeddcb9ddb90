package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// attributes sets the process apart and ties its life to ours. The kernel
// watches the thread that forked, not the process: a goroutine that ends while
// locked to its thread takes the children it started with it. No test does so.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopped says whether every thread of the process stands still.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if err != nil {
			return false
		}
		// pid (name) state …, where the name may hold anything, ")" too.
		_, state, found := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
		if !found || state[0] != 'T' {
			return false
		}
	}
	return len(threads) > 0
}
