//go:build !linux

package fiberlock

import "syscall"

// left cannot detect it here: the wait ends by its own bound.
func left(syscall.RawConn) bool { return false }
