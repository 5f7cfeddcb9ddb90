package main

import "syscall"

// attributes are those of the command's process. The kernel kills it when latchctl is killed,
// because nothing would renew the lease.
func attributes(ownGroup bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: ownGroup, Pdeathsig: syscall.SIGKILL}
}
