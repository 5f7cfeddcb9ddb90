package main

import "syscall"

// attributes returns the attributes of the command's process. They make the kernel kill the
// process when latchctl is killed, because nothing would renew the lease any more.
func attributes(ownGroup bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: ownGroup, Pdeathsig: syscall.SIGKILL}
}
