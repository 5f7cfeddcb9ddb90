package fiberlock

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// left reports whether the client has closed its end of a connection. left detects the close even
// if unread data has arrived, such as the end of a TLS session.
func left(conn syscall.RawConn) (gone bool) {
	err := conn.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(fds, 0)
		gone = err == nil && n > 0
	})
	return err != nil || gone
}
