package chaos

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Wire is a proxy in front of a database server. It causes a fault at COMMIT or at another
// statement. It finds the statement by searching the data of clients for a word, because both
// protocols send statements as text. [NewWire] makes a Wire; the zero value is not usable. Its
// methods may be called from any goroutine.
type Wire struct {
	target   string
	listener net.Listener
	work     sync.WaitGroup
	closed   atomic.Bool

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	next  Strike // the fault that will strike at the next matching statement
	word  string // a statement matches if it contains this word
	dead  bool   // true: no data passes
	hits  int
}

// Strike is a fault of a [Wire].
type Strike int

// The faults at a statement.
const (
	pass       Strike = iota // no fault
	CutAnswer                // the server executes the statement, but the connection is closed before the reply
	CutRequest               // the connection is closed before the server gets the statement
	Swallow                  // the server executes the statement; its reply is lost, but the connection stays open
)

// NewWire starts a Wire to the server at target. The Wire ends with the test.
func NewWire(t testing.TB, target string) *Wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Wire{target: target, listener: listener, conns: make(map[net.Conn]struct{})}
	w.work.Go(w.accept)
	t.Cleanup(func() {
		w.closed.Store(true)
		_ = listener.Close()
		w.Cut()
		w.work.Wait()
	})
	return w
}

// Addr is the host:port that clients connect to.
func (w *Wire) Addr() string { return w.listener.Addr().String() }

// Strike makes the fault s strike at the next COMMIT. If thenDead is true, no data passes after the
// fault.
func (w *Wire) Strike(s Strike, thenDead bool) { w.StrikeAt("COMMIT", s, thenDead) }

// StrikeAt makes the fault s strike at the next statement that contains word. The word is in
// capitals.
func (w *Wire) StrikeAt(word string, s Strike, thenDead bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.word, w.next, w.dead = word, s, false
	if thenDead {
		w.next = s | 1<<8
	}
}

// Revive makes the data pass again.
func (w *Wire) Revive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = false
}

// Struck returns the number of statements at which a fault has struck.
func (w *Wire) Struck() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hits
}

// meet looks at data from a client. It returns the fault that must strike at this data, or pass
// if none must.
func (w *Wire) meet(data []byte) Strike {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == pass {
		return pass
	}
	text := bytes.ToUpper(data)
	for _, other := range []string{"AUTOCOMMIT", "READ COMMITTED"} { // neither is a COMMIT
		text = bytes.ReplaceAll(text, []byte(other), nil)
	}
	if !bytes.Contains(text, []byte(w.word)) {
		return pass
	}
	s := w.next
	w.next = pass
	w.hits++
	w.dead = s&(1<<8) != 0
	return s &^ (1 << 8)
}

func (w *Wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.mu.Lock()
		dead := w.dead
		w.conns[client] = struct{}{}
		w.mu.Unlock()
		if dead || w.closed.Load() {
			_ = client.Close()
			continue
		}
		w.work.Go(func() { w.serve(client) })
	}
}

func (w *Wire) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", w.target)
	if err != nil {
		return
	}
	w.mu.Lock()
	w.conns[server] = struct{}{}
	w.mu.Unlock()
	var mute atomic.Bool // true: the proxy drops the server's replies
	w.work.Go(func() {
		defer func() { _ = client.Close() }()
		buffer := make([]byte, 1<<16)
		for {
			n, err := server.Read(buffer)
			if n > 0 && !mute.Load() {
				_, _ = client.Write(buffer[:n])
			}
			if err != nil {
				return
			}
		}
	})
	defer func() { _ = server.Close() }()
	buffer := make([]byte, 1<<16)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		switch w.meet(buffer[:n]) {
		case CutRequest:
			return
		case CutAnswer:
			mute.Store(true)
			_, _ = server.Write(buffer[:n])
			w.awaitAnswer(server)
			return
		case Swallow:
			mute.Store(true)
		case pass:
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// awaitAnswer closes the connection to the server for writing. The server executes the
// statement, replies, and closes the connection, too. Then awaitAnswer returns.
func (w *Wire) awaitAnswer(server net.Conn) {
	if half, ok := server.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
	_, _ = io.Copy(io.Discard, server)
}

// Cut closes all present connections.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Close()
	}
}
