package fiberlock

import (
	"net"
	"sync"
	"syscall"
	"time"
)

// probe checks, while a request waits for its lock, whether its client has disconnected.
type probe struct {
	conn syscall.RawConn
	gone func()

	mu    sync.Mutex
	timer *time.Timer // nil: no checks are made
}

const (
	// firstLook is the time before the first check. A request that gets its lock sooner needs no
	// check.
	firstLook = 100 * time.Millisecond
	nextLook  = 250 * time.Millisecond
)

// newProbe starts the checks. gone is called at most once.
func newProbe(conn net.Conn, gone func()) *probe {
	p := &probe{gone: gone}
	if wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok { // a TLS connection
		conn = wrapped.NetConn()
	}
	raw, ok := conn.(syscall.Conn)
	if !ok {
		return p
	}
	var err error
	if p.conn, err = raw.SyscallConn(); err != nil {
		return p
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(firstLook, p.look)
	return p
}

func (p *probe) look() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.timer == nil:
	case left(p.conn):
		p.timer = nil
		p.gone()
	default:
		p.timer.Reset(nextLook)
	}
}

// stop ends the checks. Afterwards gone is not called.
func (p *probe) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}
