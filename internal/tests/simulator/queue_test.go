package simulator

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/latchkit/latchkit/internal/store"
)

// subject is a server with one key and some processes. The processes have numbers. The subject
// fails its test when it cannot continue.
type subject interface {
	acquire(process int, owner string, queue bool) answer
	renew(process int, owner string, handed bool) answer
	release(process int, owner string, undo bool) answer
	expire()           // makes the lease end without a release
	start(process int) // starts a process that listens
	kill(process int)  // when kill returns, the inbox of the process has no subscriber
	nextGrant(process int) (owner string, fence uint64)
	// returns the owners of those grants by message that nextGrant has not returned yet
	unexpectedGrants() []string
}

// history plays the same random steps on a subject and on the model, and compares their answers.
type history struct {
	*rapid.T
	subject subject
	model   *model

	processes int
	owners    []string
	processOf map[string]int // for each owner: the owner's process
	mayQueue  map[string]bool
	lastFence uint64 // the fence of the last hold
	lastOwner string // the owner of the last hold; "": this hold has ended
}

const blockOf = 4 // the number of fences that each acquire reserves

// play plays a history on the subject s and on a model with the deviations k. The test t fails at
// the first difference.
func play(t *rapid.T, s subject, k deviations) {
	h := &history{
		T: t, subject: s, model: newModel(k),
		processOf: make(map[string]int), mayQueue: make(map[string]bool),
	}
	for range 3 {
		h.startProcess()
	}
	t.Repeat(map[string]func(*rapid.T){
		"acquire": func(t *rapid.T) { h.T = t; h.acquire(h.newOwner()) },
		"join":    func(t *rapid.T) { h.T = t; h.acquire(h.newOwner()) },
		"repeat":  func(t *rapid.T) { h.T = t; h.acquire(h.recentOwner("repeats")) },
		"renew":   func(t *rapid.T) { h.T = t; h.renew(h.recentOwner("renews")) },
		"confirm": func(t *rapid.T) { h.T = t; h.renew(h.holder()) },
		"release": func(t *rapid.T) { h.T = t; h.release(h.holder()) },
		"give up": func(t *rapid.T) { h.T = t; h.release(h.recentOwner("gives up")) },
		"expire": func(t *rapid.T) {
			h.T = t
			h.Log("the lease ends")
			h.model.expire()
			s.expire()
			h.lastOwner = ""
		},
		"kill": func(t *rapid.T) {
			h.T = t
			p := rapid.IntRange(0, h.processes-1).Draw(t, "process")
			if h.model.dead[p] {
				return
			}
			h.Logf("p%d is killed", p)
			h.model.kill(p)
			s.kill(p)
			h.startProcess()
		},
		"": func(t *rapid.T) {
			if odd := s.unexpectedGrants(); len(odd) > 0 {
				t.Fatalf("nobody should have been told: %v", odd)
			}
		},
	})
}

func (h *history) startProcess() {
	h.subject.start(h.processes)
	h.processes++
}

// newOwner makes an owner in a living process, and returns its name. A few owners have no inbox.
func (h *history) newOwner() string {
	owner := fmt.Sprintf("t%d", len(h.owners)+1)
	var alive []int
	for p := range h.processes {
		if !h.model.dead[p] {
			alive = append(alive, p)
		}
	}
	h.processOf[owner] = rapid.SampledFrom(alive).Draw(h.T, "process")
	h.mayQueue[owner] = rapid.IntRange(0, 9).Draw(h.T, "queues") > 0
	if rapid.IntRange(0, 9).Draw(h.T, "inbox") == 0 {
		h.processOf[owner] = noInbox
	}
	h.owners = append(h.owners, owner)
	return owner
}

// recentOwner returns one of the eight newest owners. The label names the choice in the output of
// rapid.
func (h *history) recentOwner(label string) string {
	if len(h.owners) == 0 {
		return h.newOwner()
	}
	last := h.owners[max(0, len(h.owners)-8):]
	return rapid.SampledFrom(last).Draw(h.T, label)
}

func (h *history) holder() string {
	if h.model.holder != "" {
		return h.model.holder
	}
	return h.recentOwner("who")
}

// The owner may belong to a dead process: the process makes no new calls, but its earlier calls
// may still run late or be repeated.
func (h *history) acquire(owner string) {
	want := h.model.acquire(h.processOf[owner], owner, h.mayQueue[owner])
	got := h.subject.acquire(h.processOf[owner], owner, h.mayQueue[owner])
	h.Logf("p%d %s acquires: %s", h.processOf[owner], owner, got)
	h.compare(want, got)
	h.awaitGrants()
	if got.State == store.Granted {
		h.checkFence(owner, got.Fence)
	}
}

func (h *history) renew(owner string) {
	handed := h.model.holder == owner && h.model.index(owner) >= 0 && rapid.Bool().Draw(h.T, "confirms")
	want := h.model.renew(owner, handed)
	got := h.subject.renew(h.processOf[owner], owner, handed)
	h.Logf("p%d %s renews, confirming: %v: %s", h.processOf[owner], owner, handed, got)
	h.compare(want, got)
	h.awaitGrants()
}

func (h *history) release(owner string) {
	undo := rapid.IntRange(0, 3).Draw(h.T, "undo") == 0
	if h.model.holder == owner {
		h.lastOwner = ""
	}
	want := h.model.release(owner, undo)
	got := h.subject.release(h.processOf[owner], owner, undo)
	h.Logf("p%d %s releases, undo: %v: %s", h.processOf[owner], owner, undo, got)
	h.compare(want, got)
	h.awaitGrants()
}

func (h *history) compare(want, got answer) {
	h.Helper()
	if got.State != want.State || got.Place != want.Place {
		h.Fatalf("the answer is %s, and should be %s; waiting: %+v", got, want, h.model.queue)
	}
}

// awaitGrants waits until the subject has sent the same grants by message as the model in the
// last step.
func (h *history) awaitGrants() {
	h.Helper()
	for _, m := range h.model.takeGrants() {
		if h.model.dead[m.process] {
			continue
		}
		owner, fence := h.subject.nextGrant(m.process)
		if owner != m.owner {
			h.Fatalf("p%d is told that %q has the key, and it is %s", m.process, owner, m.owner)
		}
		h.checkFence(owner, fence)
	}
}

// checkFence checks the fence of a grant to owner: each hold has fences of its own, and fences
// grow. A repeated message must have the same fences as the first message.
func (h *history) checkFence(owner string, fence uint64) {
	h.Helper()
	switch {
	case owner == h.lastOwner && fence != h.lastFence:
		h.Fatalf("%s has the key with fence %d, and is told %d", owner, h.lastFence, fence)
	case owner != h.lastOwner && h.lastFence > 0 && fence < h.lastFence+blockOf:
		h.Fatalf("%s is granted the key with fence %d after %d…%d", owner, fence, h.lastFence, h.lastFence+blockOf-1)
	}
	h.lastOwner, h.lastFence = owner, fence
}

func (a answer) String() string {
	s := a.State.String()
	if a.Place > 0 {
		s += fmt.Sprintf(" place %d", a.Place)
	}
	return s
}

// TestQueue compares the simulated server with the model.
func TestQueue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { play(t, newSimulated(), deviations{pardon: true}) })
}

// simulated is the server of the simulation, without the rest of the simulation.
type simulated struct {
	w      *world
	boxes  []*inbox
	tokens map[string]token
	owners map[token]string
	sent   []sentMessage
}

type sentMessage struct {
	box *inbox
	message
}

func newSimulated() *simulated {
	s := &simulated{w: newWorld(Scenario{Keys: 1}, 1, 0), tokens: make(map[string]token), owners: make(map[token]string)}
	s.w.spy = func(in *inbox, m message) { s.sent = append(s.sent, sentMessage{in, m}) }
	return s
}

func (s *simulated) claim(process int, owner string, queue bool) claim {
	t, ok := s.tokens[owner]
	if !ok {
		t = s.w.newToken()
		s.tokens[owner], s.owners[t] = t, owner
		s.w.holds[t] = &hold{w: s.w, token: t, p: &process0}
	}
	c := claim{token: t, ttl: 30 * time.Second, block: blockOf, queue: queue, hand: 2 * time.Second}
	if process != noInbox {
		c.inbox = s.boxes[process]
	}
	return c
}

// process0 stands for all processes, because their state does not matter here.
var process0 process

func (s *simulated) tick() { s.w.now += time.Microsecond }

func (*simulated) answer(r reply) answer {
	states := map[state]store.State{
		granted: store.Granted, busy: store.Busy, undone: store.Undone, released: store.Released, notOurs: store.NotOurs,
	}
	return answer{State: states[r.state], Place: r.place, Fence: r.fence}
}

func (s *simulated) acquire(process int, owner string, queue bool) answer {
	s.tick()
	return s.answer(s.w.server.acquire(0, s.claim(process, owner, queue)))
}

func (s *simulated) renew(process int, owner string, handed bool) answer {
	s.tick()
	return s.answer(s.w.server.renew(0, s.claim(process, owner, false).token, 30*time.Second, handed))
}

func (s *simulated) release(process int, owner string, undo bool) answer {
	s.tick()
	lasts := time.Duration(0)
	if undo {
		lasts = time.Minute
	}
	return s.answer(s.w.server.release(0, s.claim(process, owner, false).token, lasts))
}

func (s *simulated) expire() { s.w.server.rows[0].lease = lease{} }

func (s *simulated) start(int) {
	in := &inbox{owner: &process0}
	in.subscribers = []*subscription{{inbox: in}}
	s.boxes = append(s.boxes, in)
}

func (s *simulated) kill(process int) { s.boxes[process].subscribers = nil }

func (s *simulated) nextGrant(process int) (owner string, fence uint64) {
	i := slices.IndexFunc(s.sent, func(m sentMessage) bool { return m.box == s.boxes[process] })
	if i < 0 {
		return "", 0
	}
	m := s.sent[i]
	s.sent = slices.Delete(s.sent, i, i+1)
	return s.owners[m.token], m.fence
}

func (s *simulated) unexpectedGrants() (odd []string) {
	for _, m := range s.sent {
		odd = append(odd, s.owners[m.token])
	}
	return odd
}
