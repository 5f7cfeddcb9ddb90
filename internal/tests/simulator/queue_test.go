package simulator

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/latchkit/latchkit/locker/store"
)

// subject is a server with one key and some processes. The processes have numbers. The subject
// fails its test when it cannot continue.
type subject interface {
	acquire(process int, owner string, queue bool) answer
	renew(process int, owner string, handed bool) answer
	release(process int, owner string, undo bool, next string) answer
	expire()           // makes the lease end without a release
	start(process int) // starts a process that listens
	kill(process int)  // when kill returns, the inbox of the process has no subscriber
	told(process int) (owner string, fence uint64)
	untold() []string // returns the messages that have arrived but were not expected
}

// history plays random steps on a subject and on the model.
type history struct {
	*rapid.T
	subject subject
	model   *model

	processes int
	owners    []string
	of        map[string]int // for each owner: the owner's process
	queues    map[string]bool
	last      uint64 // the fence of the last hold
	holds     string // the owner of the last hold; "": the hold is over
}

const blockOf = 4 // the number of fences that each acquire reserves

// play compares a subject with the model, step by step.
func play(t *rapid.T, s subject, k kind) {
	h := &history{
		T: t, subject: s, model: newModel(k),
		of: make(map[string]int), queues: make(map[string]bool),
	}
	for range 3 {
		h.begin()
	}
	t.Repeat(map[string]func(*rapid.T){
		"acquire": func(t *rapid.T) { h.T = t; h.acquire(h.newOwner()) },
		"join":    func(t *rapid.T) { h.T = t; h.acquire(h.newOwner()) },
		"repeat":  func(t *rapid.T) { h.T = t; h.acquire(h.some("repeats")) },
		"renew":   func(t *rapid.T) { h.T = t; h.renew(h.some("renews")) },
		"confirm": func(t *rapid.T) { h.T = t; h.renew(h.holder()) },
		"release": func(t *rapid.T) { h.T = t; h.release(h.holder()) },
		"give up": func(t *rapid.T) { h.T = t; h.release(h.some("gives up")) },
		"expire": func(t *rapid.T) {
			h.T = t
			h.Log("the lease ends")
			h.model.expire()
			s.expire()
			h.holds = ""
		},
		"kill": func(t *rapid.T) {
			h.T = t
			p := rapid.IntRange(0, h.processes-1).Draw(t, "process")
			if h.model.gone[p] {
				return
			}
			h.Logf("p%d is killed", p)
			h.model.kill(p)
			s.kill(p)
			h.begin()
		},
		"": func(t *rapid.T) {
			if odd := s.untold(); len(odd) > 0 {
				t.Fatalf("nobody should have been told: %v", odd)
			}
		},
	})
}

func (h *history) begin() {
	h.subject.start(h.processes)
	h.processes++
}

// newOwner makes an owner in a living process. A few owners have no inbox.
func (h *history) newOwner() string {
	owner := fmt.Sprintf("t%d", len(h.owners)+1)
	var alive []int
	for p := range h.processes {
		if !h.model.gone[p] {
			alive = append(alive, p)
		}
	}
	h.of[owner] = rapid.SampledFrom(alive).Draw(h.T, "process")
	h.queues[owner] = rapid.IntRange(0, 9).Draw(h.T, "queues") > 0
	if rapid.IntRange(0, 9).Draw(h.T, "inbox") == 0 {
		h.of[owner] = noInbox
	}
	h.owners = append(h.owners, owner)
	return owner
}

// some returns an owner, usually one of the newest owners.
func (h *history) some(does string) string {
	if len(h.owners) == 0 {
		return h.newOwner()
	}
	last := h.owners[max(0, len(h.owners)-8):]
	return rapid.SampledFrom(last).Draw(h.T, does)
}

func (h *history) holder() string {
	if h.model.holder != "" {
		return h.model.holder
	}
	return h.some("who")
}

// waiting returns an owner of the same process that is already in the queue, if there is one.
func (h *history) waiting(owner string) string {
	var all []string
	for _, p := range h.model.queue {
		if p.owner != owner && p.process == h.of[owner] {
			all = append(all, p.owner)
		}
	}
	if len(all) == 0 || h.model.kind.novice {
		return ""
	}
	return rapid.SampledFrom(all).Draw(h.T, "next")
}

// The owner may belong to a dead process. A dead process makes no new calls. But its earlier calls
// may run late, like every repetition of a call.
func (h *history) acquire(owner string) {
	want := h.model.acquire(h.of[owner], owner, h.queues[owner])
	got := h.subject.acquire(h.of[owner], owner, h.queues[owner])
	h.Logf("p%d %s acquires: %s", h.of[owner], owner, got)
	h.compare(want, got)
	h.mail()
	if got.State == store.Granted {
		h.granted(owner, got.Fence)
	}
}

func (h *history) renew(owner string) {
	handed := h.model.holder == owner && h.model.index(owner) >= 0 && rapid.Bool().Draw(h.T, "confirms")
	want := h.model.renew(owner, handed)
	got := h.subject.renew(h.of[owner], owner, handed)
	h.Logf("p%d %s renews, confirming: %v: %s", h.of[owner], owner, handed, got)
	h.compare(want, got)
	h.mail()
}

func (h *history) release(owner string) {
	undo := rapid.IntRange(0, 3).Draw(h.T, "undo") == 0
	next := ""
	if h.model.holder == owner || rapid.Bool().Draw(h.T, "next although not held") {
		switch rapid.IntRange(0, 4).Draw(h.T, "next") {
		case 0, 1:
			next = h.newOwner()
			h.of[next], h.queues[next] = h.of[owner], true
		case 2:
			next = h.waiting(owner)
		case 3:
			next = h.some("next")
			if h.of[next] != h.of[owner] || !h.queues[next] || next == owner || h.model.index(next) >= 0 {
				next = ""
			}
		}
	}
	if h.model.holder == owner {
		h.holds = ""
	}
	want := h.model.release(owner, undo, h.of[owner], next)
	got := h.subject.release(h.of[owner], owner, undo, next)
	h.Logf("p%d %s releases, undo: %v, next: %q: %s", h.of[owner], owner, undo, next, got)
	h.compare(want, got)
	h.mail()
	if got.Next != nil && got.Next.State == store.Granted {
		h.granted(next, got.Next.Fence)
	}
}

func (h *history) compare(want, got answer) {
	h.Helper()
	if got.State != want.State || got.Place != want.Place {
		h.Fatalf("the answer is %s, and should be %s; waiting: %+v", got, want, h.model.queue)
	}
	if want.Next == nil != (got.Next == nil) {
		h.Fatalf("the answer is %s, and should be %s", got, want)
	}
	if want.Next != nil {
		h.compare(*want.Next, *got.Next)
	}
}

// mail waits for the messages of the last step.
func (h *history) mail() {
	h.Helper()
	for _, m := range h.model.sent() {
		if h.model.gone[m.process] {
			continue
		}
		owner, fence := h.subject.told(m.process)
		if owner != m.owner {
			h.Fatalf("p%d is told that %q has the key, and it is %s", m.process, owner, m.owner)
		}
		h.granted(owner, fence)
	}
}

// granted checks that each hold has its own fences, and that fences grow. A repeated message must
// have the same fences as the first message.
func (h *history) granted(owner string, fence uint64) {
	h.Helper()
	switch {
	case owner == h.holds && fence != h.last:
		h.Fatalf("%s has the key with fence %d, and is told %d", owner, h.last, fence)
	case owner != h.holds && h.last > 0 && fence < h.last+blockOf:
		h.Fatalf("%s is granted the key with fence %d after %d…%d", owner, fence, h.last, h.last+blockOf-1)
	}
	h.holds, h.last = owner, fence
}

func (a answer) String() string {
	s := a.State.String()
	if a.Place > 0 {
		s += fmt.Sprintf(" place %d", a.Place)
	}
	if a.Next != nil {
		s += ", next: " + a.Next.String()
	}
	return s
}

// TestQueue compares the simulated server with the model.
func TestQueue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { play(t, newSimulated(), kind{pardon: true}) })
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
	to *inbox
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

func (s *simulated) answer(r *reply) *answer {
	if r == nil {
		return nil
	}
	states := map[state]store.State{
		granted: store.Granted, busy: store.Busy, undone: store.Undone, released: store.Released, notOurs: store.NotOurs,
	}
	return &answer{State: states[r.state], Place: r.place, Fence: r.fence, Next: s.answer(r.next)}
}

func (s *simulated) acquire(process int, owner string, queue bool) answer {
	s.tick()
	r := s.w.server.acquire(0, s.claim(process, owner, queue))
	return *s.answer(&r)
}

func (s *simulated) renew(process int, owner string, handed bool) answer {
	s.tick()
	r := s.w.server.renew(0, s.claim(process, owner, false).token, 30*time.Second, handed)
	return *s.answer(&r)
}

func (s *simulated) release(process int, owner string, undo bool, next string) answer {
	s.tick()
	var n *claim
	if next != "" {
		c := s.claim(process, next, true)
		n = &c
	}
	lasts := time.Duration(0)
	if undo {
		lasts = time.Minute
	}
	r := s.w.server.release(0, s.claim(process, owner, false).token, lasts, n)
	return *s.answer(&r)
}

func (s *simulated) expire() { s.w.server.rows[0].lease = lease{} }

func (s *simulated) start(int) {
	in := &inbox{owner: &process0}
	in.heard = []*subscription{{inbox: in}}
	s.boxes = append(s.boxes, in)
}

func (s *simulated) kill(process int) { s.boxes[process].heard = nil }

func (s *simulated) told(process int) (owner string, fence uint64) {
	i := slices.IndexFunc(s.sent, func(m sentMessage) bool { return m.to == s.boxes[process] })
	if i < 0 {
		return "", 0
	}
	m := s.sent[i]
	s.sent = slices.Delete(s.sent, i, i+1)
	return s.owners[m.token], m.fence
}

func (s *simulated) untold() (odd []string) {
	for _, m := range s.sent {
		odd = append(odd, s.owners[m.token])
	}
	return odd
}
