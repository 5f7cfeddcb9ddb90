//go:build !linux

package fiberlock

import "syscall"

// left cannot detect on this system that a client has closed its connection. The request then
// waits until its Rule's Wait ends.
func left(syscall.RawConn) bool { return false }
