package main

import "syscall"

// attributes returns the attributes of the command's process. They make the kernel kill the
// command's process when latchctl is killed, because then no process renews the lease any more.
func attributes(ownGroup bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: ownGroup, Pdeathsig: syscall.SIGKILL}
}
