package chaos

import (
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Proxy passes Redis traffic on and breaks it when told to. It is made by
// [NewProxy]; the zero value is of no use. Its methods may be called from any
// goroutine.
type Proxy struct {
	target   string
	listener net.Listener
	work     sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	links    map[*link]struct{}
	faults   []*Fault
	commands map[string]int
}

// NewProxy stands in front of the server at target, until the test ends. A
// server that is down shows as a connection that closes at once: the proxy has
// accepted it before it could know.
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

// LoseReplies closes the connection instead of passing the reply on, for the
// next n requests that match: the server has executed them, the client cannot
// know. What was pipelined behind such a request loses its reply as well.
//
// A script's first EVALSHA may be answered with NOSCRIPT; run it once before.
func (p *Proxy) LoseReplies(n int, match Match) *Fault { return p.arm(newFault(losing, n, match)) }

// SwallowReplies drops the replies to the next n requests that match: the
// server has executed them, the client waits until its time-out. The connection
// stays open and silent from then on, for a later reply on it would be taken for
// the one that is missing.
func (p *Proxy) SwallowReplies(n int, match Match) *Fault {
	return p.arm(newFault(swallowing, n, match))
}

// HoldRequests keeps the next n requests that match, and what follows on their
// connections, until the fault is lifted. They are then executed late, also
// when the client has given up and hung up; only [Proxy.Cut] drops them.
func (p *Proxy) HoldRequests(n int, match Match) *Fault { return p.arm(newFault(holding, n, match)) }

// BlackHole lets nothing through, in either direction, and resets nothing:
// clients connect, send and wait. When it is lifted, all that piled up arrives,
// as after a partition that TCP outlasted. It hits once for each thing kept: a
// message, or the opening or end of a connection.
func (p *Proxy) BlackHole() *Fault {
	return p.arm(newFault(blackhole, Every, func([]byte) bool { return true }))
}

// Cut closes all present connections and says how many. New ones are welcome.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	links := maps.Clone(p.links)
	p.mu.Unlock()
	for l := range links {
		l.close()
	}
	return len(links)
}

// Commands is how many of each command clients have sent, by upper-case name.
// Commands that scripts run on the server are not seen; those with which a
// client introduces itself (HELLO, CLIENT) are.
func (p *Proxy) Commands() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.commands)
}

// ResetCommands starts the count afresh.
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

// pick finds the first fault of these kinds that is about the message, and
// takes it up on that.
func (p *Proxy) pick(m message, kinds ...kind) *Fault {
	p.mu.Lock()
	faults := p.faults
	p.mu.Unlock()
	for _, f := range faults {
		if slices.Contains(kinds, f.kind) && f.pick(m) {
			return f
		}
	}
	return nil
}

func (p *Proxy) count(request message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.commands[strings.ToUpper(request.first())]++
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		l := &link{proxy: p, client: client, gone: make(chan struct{})}
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

// close ends everything and waits until it has.
func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Cut()
	p.work.Wait()
}
