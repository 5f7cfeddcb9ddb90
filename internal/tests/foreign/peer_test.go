package foreign

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/proc"
)

// A peer is a process that locks with one library. First it prints "ready" and the versions of its
// libraries. Then it executes commands, one after the other. A command is one line, and so is its
// result, which begins with "answer". These are the commands, each with its possible results:
//
//	try KEY MS                     held | busy       one attempt, with a TTL in milliseconds
//	wait KEY MS                    held | busy       attempts for a minute at most
//	extend KEY MS                  extended | lost
//	unlock KEY                     unlocked | lost
//	visit KEY MS VISITS LOG NAME   visited           so many times it takes the key, and appends
//	                                                 "in NAME" and "out NAME" to the list LOG
type peer struct {
	*proc.Child
	versions string
}

func newPeer(t testing.TB, child *proc.Child) *peer {
	t.Helper()
	return &peer{child, child.Expect(t, "ready ")}
}

// asks sends a command without waiting for the result.
func (p *peer) asks(words ...any) {
	p.Send(strings.TrimSuffix(fmt.Sprintln(words...), "\n"))
}

// wants waits for the result, and compares it.
func (p *peer) wants(t testing.TB, answer string) {
	t.Helper()
	if got := p.Expect(t, "answer "); got != answer {
		t.Fatalf("the peer answers %q, not %q", got, answer)
	}
}

func (p *peer) try(t testing.TB, key string, ttl time.Duration, answer string) {
	t.Helper()
	p.asks("try", key, ttl.Milliseconds())
	p.wants(t, answer)
}

// waits sends the command "wait". Call held to wait for the result.
func (p *peer) waits(key string, ttl time.Duration) { p.asks("wait", key, ttl.Milliseconds()) }

func (p *peer) extend(t testing.TB, key string, ttl time.Duration, answer string) {
	t.Helper()
	p.asks("extend", key, ttl.Milliseconds())
	p.wants(t, answer)
}

func (p *peer) unlock(t testing.TB, key, answer string) {
	t.Helper()
	p.asks("unlock", key)
	p.wants(t, answer)
}

// visits sends the command "visit". Call visited to wait for the result.
func (p *peer) visits(key string, ttl time.Duration, n int, log, name string) {
	p.asks("visit", key, ttl.Milliseconds(), n, log, name)
}
