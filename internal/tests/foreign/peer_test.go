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

// sendCommand sends a command without waiting for the result.
func (p *peer) sendCommand(words ...any) {
	p.Send(strings.TrimSuffix(fmt.Sprintln(words...), "\n"))
}

// awaitAnswer waits for the result of the present command. It fails the test unless the result is
// want.
func (p *peer) awaitAnswer(t testing.TB, want string) {
	t.Helper()
	if got := p.Expect(t, "answer "); got != want {
		t.Fatalf("the peer answers %q, not %q", got, want)
	}
}

func (p *peer) try(t testing.TB, key string, ttl time.Duration, answer string) {
	t.Helper()
	p.sendCommand("try", key, ttl.Milliseconds())
	p.awaitAnswer(t, answer)
}

// startWait sends the command "wait". The caller then calls awaitAnswer with "held".
func (p *peer) startWait(key string, ttl time.Duration) {
	p.sendCommand("wait", key, ttl.Milliseconds())
}

func (p *peer) extend(t testing.TB, key string, ttl time.Duration, answer string) {
	t.Helper()
	p.sendCommand("extend", key, ttl.Milliseconds())
	p.awaitAnswer(t, answer)
}

func (p *peer) unlock(t testing.TB, key, answer string) {
	t.Helper()
	p.sendCommand("unlock", key)
	p.awaitAnswer(t, answer)
}

// startVisits sends the command "visit". The caller then calls awaitAnswer with "visited".
func (p *peer) startVisits(key string, ttl time.Duration, n int, log, name string) {
	p.sendCommand("visit", key, ttl.Milliseconds(), n, log, name)
}
