package chaos

import (
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Proxy passes Redis traffic on, and causes faults on request. [NewProxy] makes a Proxy; the zero
// value is not usable. Its methods may be called from any goroutine.
type Proxy struct {
	listener net.Listener
	work     sync.WaitGroup

	mu       sync.Mutex
	target   string
	closed   bool
	links    map[*link]struct{}
	faults   []*Fault
	patches  []*patch
	commands map[string]int
}

// NewProxy starts a Proxy to the server at target. The Proxy ends with the test. If the server is
// down, a client's connection is accepted and then closed at once.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("chaos: %v", err)
	}
	p := &Proxy{
		target:   target,
		listener: listener,
		links:    map[*link]struct{}{},
		commands: map[string]int{},
	}
	p.work.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr is the host:port that clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Lead makes new connections lead to the server at target. Present connections stay as they are.
func (p *Proxy) Lead(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// LoseReplies lets the server execute the next n requests that match. But the proxy does not pass
// their replies on: it closes the connection instead. Requests that were pipelined behind such a
// request lose their replies too.
//
// The first EVALSHA of a script may get the reply NOSCRIPT, so run the script once before.
func (p *Proxy) LoseReplies(n int, match Match) *Fault { return p.arm(newFault(losing, n, match)) }

// HalveReplies does the work of LoseReplies, but the client receives the first half of the reply
// before the connection ends.
func (p *Proxy) HalveReplies(n int, match Match) *Fault { return p.arm(newFault(halving, n, match)) }

// SwallowReplies drops the replies to the next n requests that match. The server has executed these
// requests, and the client waits until its time-out. The connection stays open. But all later
// replies on it are dropped too, because the client would take a later reply for the missing reply.
func (p *Proxy) SwallowReplies(n int, match Match) *Fault {
	return p.arm(newFault(swallowing, n, match))
}

// HoldRequests keeps the next n requests that match, and all later requests on their connections,
// until the fault is lifted. After that, the requests are executed, late, even if the client has
// closed its connection. Only [Proxy.Cut] drops these requests.
func (p *Proxy) HoldRequests(n int, match Match) *Fault { return p.arm(newFault(holding, n, match)) }

// BlackHole keeps all traffic in both directions, and resets no connection: clients connect, send
// and wait. When the fault is lifted, all kept traffic arrives, as after a short partition of the
// network. Each kept message, and each kept start or end of a connection, is one hit.
func (p *Proxy) BlackHole() *Fault {
	return p.arm(newFault(blackhole, Every, func([]byte) bool { return true }))
}

// Cut closes all present connections and returns their number. New connections are accepted.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	links := maps.Clone(p.links)
	p.mu.Unlock()
	for l := range links {
		l.close()
	}
	return len(links)
}

// Commands returns how often clients have sent each command, by upper-case name. Commands that
// scripts run on the server do not count. The commands with which a client begins a connection
// (HELLO, CLIENT) count, too.
func (p *Proxy) Commands() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.commands)
}

// ResetCommands sets the counts to 0.
func (p *Proxy) ResetCommands() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.commands)
}

func (p *Proxy) arm(f *Fault) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

// findFault returns the first fault of these kinds that applies to the message m, or nil if no
// fault applies.
func (p *Proxy) findFault(m message, kinds ...kind) *Fault {
	p.mu.Lock()
	faults := p.faults
	p.mu.Unlock()
	for _, f := range faults {
		if slices.Contains(kinds, f.kind) && f.claimRequest(m) {
			return f
		}
	}
	return nil
}

func (p *Proxy) count(request message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.commands[strings.ToUpper(request.firstWord())]++
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // the listener was closed
		}
		l := &link{proxy: p, client: client, closing: make(chan struct{})}
		p.mu.Lock()
		p.links[l] = struct{}{}
		closed := p.closed
		p.mu.Unlock()
		if closed {
			l.close()
		}
		p.work.Go(l.serve)
	}
}

func (p *Proxy) forget(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// close closes all connections, and waits until all goroutines have ended.
func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Cut()
	p.work.Wait()
}
