// Package queue plays random histories of calls, deaths and expiries on a short model of the queue of
// a lock, on lockertest's Memory, and on the scripts on a real server. All answers and all grants by
// message must be equal. A model without one of its rules must differ.
//
//	go test ./queue -rapid.checks 20000
package queue

import (
	"fmt"

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

// play plays a history on the subject s and on the model m. The test t fails at the first
// difference.
func play(t *rapid.T, s subject, m *model) {
	h := &history{
		T: t, subject: s, model: m,
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
