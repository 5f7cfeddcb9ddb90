package chaos

import (
	"bytes"
	"net"
	"sync"
	"testing"
	"time"
)

// Pipe passes all bytes on, including the bytes of replication, which a [Proxy] cannot parse. It
// can freeze replication, and it can make the answers of a server late. Clients may also connect
// through a Pipe, which never freezes their traffic. [NewPipe] makes a Pipe; the zero value is not
// usable. Its methods may be called from any goroutine.
type Pipe struct {
	target   string
	listener net.Listener
	work     sync.WaitGroup
	closed   chan struct{}

	mu     sync.Mutex
	thawed chan struct{} // closed while replication is not frozen
	kept   int           // number of pieces kept since Freeze
	conns  map[net.Conn]struct{}
	delay  time.Duration // see Delay
}

// NewPipe starts a Pipe to the server at target. The Pipe ends with the test.
func NewPipe(t testing.TB, target string) *Pipe {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("chaos: %v", err)
	}
	p := &Pipe{
		target: target, listener: listener,
		closed: make(chan struct{}), thawed: make(chan struct{}), conns: map[net.Conn]struct{}{},
	}
	close(p.thawed)
	p.work.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr is the host:port that replicas and clients connect to.
func (p *Pipe) Addr() string { return p.listener.Addr().String() }

// Freeze stops replication until Thaw, in both directions and on all links. No data is lost, and no
// connection is reset.
func (p *Pipe) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thawed, p.kept = make(chan struct{}), 0
}

// Thaw resumes replication, beginning with the kept pieces.
func (p *Pipe) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.thawed)
}

// Delay makes each answer of the server d late, until the next Delay. Requests that a client sends
// together have their answers together.
func (p *Pipe) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Kept returns how many pieces of replication data were kept since the last Freeze. If the number
// is 0, the test has frozen nothing.
func (p *Pipe) Kept() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kept
}

func (p *Pipe) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // the listener was closed
		}
		p.work.Go(func() { p.serve(client) })
	}
}

func (p *Pipe) serve(client net.Conn) {
	defer p.closeLater(client)()
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer p.closeLater(server)()
	// A replica's connection begins with a few commands. One of these commands is PSYNC, which
	// shows that the client is a replica.
	var replicates sync.Once
	isReplica := make(chan struct{})
	var back sync.WaitGroup
	back.Go(func() { p.copyBytes(client, server, isReplica, func([]byte) { p.awaitDelay() }) })
	p.copyBytes(server, client, isReplica, func(said []byte) {
		if bytes.Contains(said, []byte("PSYNC")) {
			replicates.Do(func() { close(isReplica) })
		}
	})
	back.Wait()
}

// closeLater registers the connection c, so that the method close closes it. The returned function
// closes c earlier.
func (p *Pipe) closeLater(c net.Conn) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed:
		_ = c.Close()
	default:
		p.conns[c] = struct{}{}
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, c)
		_ = c.Close()
	}
}

// copyBytes copies bytes from src to dst until one side closes its connection, and then closes both
// connections. The function observe gets each piece of data before it is passed on. A closed channel isReplica means that
// a replica uses the connection, so Freeze keeps the pieces.
func (p *Pipe) copyBytes(dst, src net.Conn, isReplica <-chan struct{}, observe func(data []byte)) {
	defer dst.Close()
	defer src.Close()
	piece := make([]byte, 64<<10)
	for {
		n, err := src.Read(piece)
		observe(piece[:n])
		if n > 0 {
			select {
			case <-isReplica:
				p.awaitThaw()
			default:
			}
			if _, err := dst.Write(piece[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// awaitThaw returns as soon as replication is not frozen.
func (p *Pipe) awaitThaw() {
	p.mu.Lock()
	thawed := p.thawed
	select {
	case <-thawed:
	default:
		p.kept++
	}
	p.mu.Unlock()
	select {
	case <-thawed:
	case <-p.closed:
	}
}

// awaitDelay waits for the time by which an answer is late.
func (p *Pipe) awaitDelay() {
	p.mu.Lock()
	d := p.delay
	p.mu.Unlock()
	if d > 0 {
		select {
		case <-time.After(d):
		case <-p.closed:
		}
	}
}

func (p *Pipe) close() {
	_ = p.listener.Close()
	close(p.closed)
	p.mu.Lock()
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.work.Wait()
}
