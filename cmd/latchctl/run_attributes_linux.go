package main

import "syscall"

// attributes are those of the command's process. It dies when latchctl is killed, because nobody
// would renew the lease.
func attributes(ownGroup bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: ownGroup, Pdeathsig: syscall.SIGKILL}
}
