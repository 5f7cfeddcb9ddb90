package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// attributes returns the attributes of a new process: they give the process its own group, and make
// the kernel kill it when the test binary dies. The kernel watches the thread that started the
// process. If a goroutine ends while it is locked to its thread, the thread ends, and the children
// that it has started are killed. No test has such a goroutine.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopped reports whether every thread of the process pid has stopped.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, thread := range threads {
		stat, err := os.ReadFile(thread)
		if err != nil {
			return false
		}
		// The text is: pid (name) state …. The name may contain anything, even ")".
		_, state, found := bytes.Cut(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" "))
		if !found || state[0] != 'T' {
			return false
		}
	}
	return len(threads) > 0
}
