package sqllock_test

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// wire is a proxy in front of a database server. It causes a fault at COMMIT or at another
// statement. It finds the statement by searching the data of clients for a word, because both
// protocols send statements as text.
type wire struct {
	target   string
	listener net.Listener
	work     sync.WaitGroup
	closed   atomic.Bool

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	next  strike // the fault that will strike at the next matching statement
	word  string // a statement matches if it contains this word
	dead  bool   // true: no data passes
	hits  int
}

// strike is the kind of a fault.
type strike int

const (
	pass       strike = iota // no fault
	cutAnswer                // the server executes the statement, but the connection is closed before the reply
	cutRequest               // the connection is closed before the server gets the statement
	swallow                  // the server executes the statement; its reply is lost, but the connection stays open
)

func newWire(t testing.TB, target string) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{target: target, listener: listener, conns: make(map[net.Conn]struct{})}
	w.work.Go(w.accept)
	t.Cleanup(func() {
		w.closed.Store(true)
		_ = listener.Close()
		w.cut()
		w.work.Wait()
	})
	return w
}

func (w *wire) addr() string { return w.listener.Addr().String() }

// strike makes the fault s strike at the next COMMIT. If thenDead is true, no data passes after the
// fault.
func (w *wire) strike(s strike, thenDead bool) { w.strikeAt("COMMIT", s, thenDead) }

// strikeAt makes the fault s strike at the next statement that contains word. The word is in
// capitals.
func (w *wire) strikeAt(word string, s strike, thenDead bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.word, w.next, w.dead = word, s, false
	if thenDead {
		w.next = s | 1<<8
	}
}

// revive makes the data pass again.
func (w *wire) revive() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = false
}

// struck returns the number of statements at which a fault has struck.
func (w *wire) struck() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hits
}

// meet looks at data from a client. It returns the fault that must strike at this data, or pass
// if none must.
func (w *wire) meet(data []byte) strike {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := bytes.ReplaceAll(bytes.ToUpper(data), []byte("AUTOCOMMIT"), nil) // the word AUTOCOMMIT must not count as a COMMIT
	if w.next == pass || !bytes.Contains(text, []byte(w.word)) {
		return pass
	}
	s := w.next
	w.next = pass
	w.hits++
	w.dead = s&(1<<8) != 0
	return s &^ (1 << 8)
}

func (w *wire) accept() {
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

func (w *wire) serve(client net.Conn) {
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
		case cutRequest:
			return
		case cutAnswer:
			mute.Store(true)
			_, _ = server.Write(buffer[:n])
			w.awaitAnswer(server)
			return
		case swallow:
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
func (w *wire) awaitAnswer(server net.Conn) {
	if half, ok := server.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
	_, _ = io.Copy(io.Discard, server)
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Close()
	}
}
