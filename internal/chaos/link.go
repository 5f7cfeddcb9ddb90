package chaos

import (
	"bufio"
	"net"
	"slices"
	"strings"
	"sync"
)

// link is one client's connection, and the proxy's connection to the server for that client.
type link struct {
	proxy   *Proxy
	client  net.Conn
	closing chan struct{} // closed by close

	mu      sync.Mutex
	server  net.Conn // nil until connected
	closed  bool
	waiting []exchange // requests without a reply, the oldest first
	listens bool       // the client has subscribed to a channel, so messages may come that are no replies
}

// exchange is a request that waits for its reply.
type exchange struct {
	command string
	replies int    // number of replies that are still to come: a subscription has one for each channel
	fault   *Fault // the fault that applies to the reply; nil: none
}

// serve passes messages on until either side ends the connection.
func (l *link) serve() {
	defer l.proxy.forget(l)
	defer l.close()
	if !l.awaitPassage(nil, blackhole) || !l.connect() {
		return
	}
	var replies sync.WaitGroup
	replies.Go(l.passReplies)
	l.passRequests()
	replies.Wait()
}

// connect connects to the server. If the link was closed meanwhile, connect closes the new
// connection.
func (l *link) connect() bool {
	l.proxy.mu.Lock()
	target := l.proxy.target
	l.proxy.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = server.Close()
		return false
	}
	l.server = server
	return true
}

// passRequests passes requests on. passRequests ends when the client has closed its connection and
// all requests were sent to the server. As in a real network, delayed requests arrive even if their
// sender is gone.
func (l *link) passRequests() {
	from := bufio.NewReader(l.client)
	for {
		request, err := readMessage(from)
		if err != nil {
			break
		}
		l.proxy.count(request)
		request = l.proxy.rewrite(request)
		if !l.awaitPassage(request, holding, blackhole) {
			return
		}
		l.expectReply(request)
		if _, err := l.server.Write(request); err != nil {
			break
		}
	}
	if !l.awaitPassage(nil, blackhole) { // a black hole keeps the end of a connection too
		return
	}
	// Only the sending half of the connection is closed. If the receiving half were closed too, the
	// server's next reply would cause a reset. After a reset, the server would drop the requests
	// that it has not read yet.
	_ = l.server.(*net.TCPConn).CloseWrite()
}

// passReplies passes replies on. passReplies ends when the server closes the connection. If the
// client's side is closed, the server closes the connection after it has answered all requests.
func (l *link) passReplies() {
	defer l.close()
	from := bufio.NewReader(l.server)
	silent := false
	for {
		reply, err := readMessage(from)
		if !l.awaitPassage(reply, blackhole) || err != nil {
			return
		}
		if fault := l.takeFault(reply); fault != nil && fault.countHit() {
			switch fault.kind {
			case halving:
				_, _ = l.client.Write(reply[:len(reply)/2])
				return
			case losing:
				return
			default:
				silent = true
			}
		}
		if !silent {
			// An error is ignored here, because passRequests detects that a client is gone. The
			// server's replies are still read, so that the server does not stall.
			_, _ = l.client.Write(reply)
		}
	}
}

// awaitPassage waits while a fault of these kinds keeps the message m, and returns true when m may
// be passed on. If the link was closed meanwhile, awaitPassage returns false, and the message is
// dropped.
func (l *link) awaitPassage(m message, kinds ...kind) bool {
	for {
		f := l.proxy.findFault(m, kinds...)
		if f == nil {
			return true
		}
		if !f.countHit() {
			continue
		}
		select {
		case <-f.lifted:
		case <-l.closing:
			return false
		}
	}
}

// expectReply records that the request waits for a reply, and which fault applies to this reply.
func (l *link) expectReply(request message) {
	e := exchange{
		command: strings.ToUpper(request.firstWord()),
		replies: 1,
		fault:   l.proxy.findFault(request, losing, halving, swallowing),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if repliesByPush(e.command) {
		l.listens = true
		e.replies = max(1, request.wordCount()-1)
	}
	l.waiting = append(l.waiting, e)
}

// takeFault finds the waiting request that a reply belongs to, and returns the fault that applies
// to the reply, or nil.
//
//	reply                         belongs to
//	a push that confirms a        the oldest request, if this request
//	subscription                  asked for the subscription
//	any other push                no request
//	any other reply               the oldest request
//
// RESP2 has no pushes. On a link that listens, a reply with the words of a push counts as a push.
func (l *link) takeFault(reply message) *Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return nil
	}
	oldest := &l.waiting[0]
	kind := strings.ToUpper(reply.firstWord())
	switch {
	case reply[0] == '>' || l.listens && (repliesByPush(kind) || strings.HasSuffix(kind, "MESSAGE")):
		if kind != oldest.command {
			return nil
		}
		oldest.replies--
	default:
		oldest.replies = 0
	}
	fault := oldest.fault
	if oldest.replies == 0 {
		l.waiting = l.waiting[1:]
	}
	return fault
}

// repliesByPush reports whether the server confirms the given command by pushes instead of a reply.
func repliesByPush(command string) bool {
	return slices.Contains([]string{
		"SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE",
		"UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE",
	}, command)
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	close(l.closing)
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
}
