package main

import (
	"net"
	"sync"
	"time"
)

// delay is a proxy that delays every answer of a server by latency.
type delay struct {
	listener net.Listener
	target   string
	latency  time.Duration
	work     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  []net.Conn
}

func newDelay(target string, latency time.Duration) (*delay, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &delay{listener: l, target: target, latency: latency}
	d.work.Go(d.accept)
	return d, nil
}

// over returns the address of a line to target whose answers come later by latency, and a function
// that closes the line. Without a latency, the address is that of target.
func over(target string, latency time.Duration) (addr string, hangUp func(), err error) {
	if latency == 0 {
		return target, func() {}, nil
	}
	d, err := newDelay(target, latency)
	if err != nil {
		return "", nil, err
	}
	return d.addr(), d.close, nil
}

func (d *delay) addr() string { return d.listener.Addr().String() }

func (d *delay) accept() {
	for {
		client, err := d.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", d.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !d.keep(client, server) {
			return
		}
		d.work.Go(func() { d.pass(server, client, 0) })
		d.work.Go(func() { d.pass(client, server, d.latency) })
	}
}

// keep remembers conns, so that close can close them. It returns false if the proxy is closed
// already.
func (d *delay) keep(conns ...net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns = append(d.conns, conns...)
	if d.closed {
		for _, c := range conns {
			_ = c.Close()
		}
	}
	return !d.closed
}

// pass copies data from src to dst. pass writes each piece of data to dst after the time
// latency. Meanwhile it reads the next pieces.
func (d *delay) pass(dst, src net.Conn, latency time.Duration) {
	type piece struct {
		due  time.Time
		text []byte
	}
	pieces := make(chan piece, 1024)
	d.work.Go(func() {
		for p := range pieces {
			nap(time.Until(p.due))
			// An error of Write does not matter: when one connection is closed, the proxy
			// closes the other one too, and the goroutine that reads ends.
			_, _ = dst.Write(p.text)
		}
		_ = dst.Close()
	})
	defer close(pieces)
	for {
		text := make([]byte, 16<<10)
		n, err := src.Read(text)
		if n > 0 {
			pieces <- piece{time.Now().Add(latency), text[:n]}
		}
		if err != nil {
			return
		}
	}
}

func (d *delay) close() {
	_ = d.listener.Close()
	d.mu.Lock()
	d.closed = true
	for _, c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	d.work.Wait()
}
