//go:build unix && !linux

package main

import "syscall"

// attributes returns the attributes of the command's process.
func attributes(ownGroup bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: ownGroup}
}
