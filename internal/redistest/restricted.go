package redistest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Restrictions are what a hosted server does not allow, or does differently. The zero value is an
// ordinary server.
type Restrictions struct {
	Commands []string      // commands that the server does not know, in lower case
	Words    []string      // words that the text of a script must not contain, in lower case
	Idle     time.Duration // a connection without a command for so long is closed, unless it has subscribed; 0: never
	Channels *Server       // the server that gets the subscriptions; nil: the same server

	// Slot returns the slot of a key. If it is not nil, a script whose keys lie in several slots is
	// refused, as by a proxy before several shards.
	Slot func(key string) uint16
}

// Restricted is a proxy before a server, which behaves like a hosted server.
type Restricted struct {
	addr, server, channels string
	limits                 Restrictions

	// Subscriptions is the number of SUBSCRIBE commands so far.
	Subscriptions atomic.Int64

	mu   sync.Mutex
	seen map[string]int // how often each command was sent, refused commands included
}

// StartRestricted starts a proxy before the server. It is closed at the end of the test.
func StartRestricted(t testing.TB, server *Server, limits Restrictions) *Restricted {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		t.Fatal(err)
	}
	r := &Restricted{addr: listener.Addr().String(), server: server.Addr(), channels: server.Addr(), limits: limits, seen: make(map[string]int)}
	if limits.Channels != nil {
		r.channels = limits.Channels.Addr()
	}
	ended := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer client.Close()
				r.serve(client, ended)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		close(ended)
		work.Wait()
	})
	return r
}

// Addr returns the address of the proxy.
func (r *Restricted) Addr() string { return r.addr }

// Sent returns how often a command was sent to the proxy. The name is in lower case.
func (r *Restricted) Sent(command string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen[command]
}

// serve answers the commands of one client, one after the other. A subscription makes the
// connection a plain tunnel, because messages come without commands.
func (r *Restricted) serve(client net.Conn, ended <-chan struct{}) {
	server, err := net.Dial("tcp", r.server)
	if err != nil {
		return
	}
	defer server.Close()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-ended:
			_ = client.Close()
			_ = server.Close()
		case <-over:
		}
	}()
	from, replies := bufio.NewReader(client), bufio.NewReader(server)
	for {
		if r.limits.Idle > 0 {
			_ = client.SetReadDeadline(time.Now().Add(r.limits.Idle))
		}
		raw, words, err := readCommand(from)
		if err != nil {
			return
		}
		if refusal := r.refusal(words); refusal != "" {
			if _, err := io.WriteString(client, "-"+refusal+"\r\n"); err != nil {
				return
			}
			continue
		}
		if name := strings.ToLower(words[0]); name == "subscribe" || name == "ssubscribe" {
			r.tunnel(client, from, raw, ended)
			return
		}
		if _, err := io.WriteString(server, raw); err != nil {
			return
		}
		reply, err := readReply(replies)
		if err != nil {
			return
		}
		if _, err := io.WriteString(client, reply); err != nil {
			return
		}
	}
}

// refusal counts the command, and returns the error reply of a server that refuses it, or "".
func (r *Restricted) refusal(words []string) string {
	name := strings.ToLower(words[0])
	r.mu.Lock()
	r.seen[name]++
	r.mu.Unlock()
	if slices.Contains(r.limits.Commands, name) {
		return fmt.Sprintf("ERR unknown command '%s', with args beginning with: ", words[0])
	}
	if (name == "eval" || name == "evalsha") && r.limits.Slot != nil {
		n, _ := strconv.Atoi(words[2])
		for _, key := range words[3 : 3+n] {
			if r.limits.Slot(key) != r.limits.Slot(words[3]) {
				return "CROSSSLOT Keys in request don't hash to the same slot"
			}
		}
	}
	if name == "eval" || name == "script" && len(words) == 3 {
		text := strings.ToLower(words[min(len(words)-1, 1)])
		if name == "script" {
			text = strings.ToLower(words[2])
		}
		for _, word := range r.limits.Words {
			if strings.Contains(text, word) {
				return "ERR bad lua script for redis cluster, " + word + " is not allowed"
			}
		}
	}
	return ""
}

// tunnel connects the client with the server of the channels.
func (r *Restricted) tunnel(client net.Conn, from io.Reader, first string, ended <-chan struct{}) {
	r.Subscriptions.Add(1)
	_ = client.SetReadDeadline(time.Time{})
	channels, err := net.Dial("tcp", r.channels)
	if err != nil {
		return
	}
	if _, err := io.WriteString(channels, first); err != nil {
		return
	}
	var both sync.WaitGroup
	stop := sync.OnceFunc(func() {
		_ = channels.Close()
		_ = client.Close()
	})
	both.Go(func() { defer stop(); _, _ = io.Copy(channels, from) })
	both.Go(func() { defer stop(); _, _ = io.Copy(client, channels) })
	over := make(chan struct{})
	go func() {
		select {
		case <-ended:
			stop()
		case <-over:
		}
	}()
	both.Wait()
	close(over)
}

// readCommand reads a command, and returns its bytes and its words.
func readCommand(from *bufio.Reader) (raw string, words []string, err error) {
	line, err := from.ReadString('\n')
	if err != nil {
		return "", nil, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "*")))
	if err != nil || n < 1 {
		return "", nil, fmt.Errorf("not a command: %q", line)
	}
	var all strings.Builder
	all.WriteString(line)
	for range n {
		bulk, err := readReply(from)
		if err != nil {
			return "", nil, err
		}
		all.WriteString(bulk)
		_, word, _ := strings.Cut(bulk, "\r\n")
		words = append(words, strings.TrimSuffix(word, "\r\n"))
	}
	return all.String(), words, nil
}

// readReply returns the bytes of one reply of RESP2 or RESP3.
func readReply(from *bufio.Reader) (string, error) {
	line, err := from.ReadString('\n')
	if err != nil {
		return "", err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch line[0] {
	case '$', '=', '!':
		if n < 0 {
			return line, nil
		}
		text := make([]byte, n+2)
		_, err := io.ReadFull(from, text)
		return line + string(text), err
	case '%', '|':
		n *= 2
	case '*', '~', '>':
	default:
		return line, nil
	}
	var all strings.Builder
	all.WriteString(line)
	for range n {
		part, err := readReply(from)
		if err != nil {
			return "", err
		}
		all.WriteString(part)
	}
	return all.String(), nil
}
