package simulator

import (
	"slices"

	"github.com/latchkit/latchkit/locker/store"
)

// model is the queue of one key, without time and network. It has the holder, the waiters in
// order, and the answer of each step. Servers are compared with it step by step.
type model struct {
	holder string
	queue  []place
	undone map[string]bool
	gone   map[int]bool // the killed processes

	grants []grantMessage // the messages that the last step has sent
	kind   kind
}

// kind says in which ways a server may differ from the model.
type kind struct {
	pardon bool // the first waiter gets a free key when it asks, even if it did not confirm an earlier hand-off
	novice bool // the next token of a release was never in the queue before
	quiet  bool // the next token of a release gets no message of its grant
}

// place is a waiter in the queue. handed is true if the waiter was granted the key by message and
// has made no call since then.
type place struct {
	owner   string
	process int // noInbox: the waiter receives no messages
	handed  bool
}

type grantMessage struct {
	process int
	owner   string
}

const noInbox = -1

// answer is the answer of a step.
type answer struct {
	State store.State
	Place int // the place in the queue, if busy; 1 is the head
	Fence uint64
	Next  *answer
}

func newModel(k kind) *model {
	return &model{undone: make(map[string]bool), gone: make(map[int]bool), kind: k}
}

func (m *model) index(owner string) int {
	return slices.IndexFunc(m.queue, func(p place) bool { return p.owner == owner })
}

func (m *model) leave(owner string) bool {
	i := m.index(owner)
	if i >= 0 {
		m.queue = slices.Delete(m.queue, i, i+1)
	}
	return i >= 0
}

func (m *model) acquire(process int, owner string, queue bool) answer {
	if m.undone[owner] {
		return answer{State: store.Undone}
	}
	if m.holder == owner {
		m.leave(owner)
		return answer{State: store.Granted}
	}
	m.hand(owner)
	if m.holder == "" {
		m.leave(owner)
		m.holder = owner
		return answer{State: store.Granted}
	}
	if queue && m.index(owner) < 0 {
		m.queue = append(m.queue, place{owner: owner, process: process})
	}
	return answer{State: store.Busy, Place: m.place(owner)}
}

// place returns the place of owner in the queue. It does not count a waiter that was handed the
// key.
func (m *model) place(owner string) int {
	n := 1
	for _, p := range m.queue {
		if p.owner == owner {
			break
		}
		if !p.handed {
			n++
		}
	}
	return n
}

// hand gives a free key to the first waiter that can take it. It stops at own, the token that
// makes the call.
func (m *model) hand(own string) {
	for m.holder == "" && len(m.queue) > 0 {
		head := &m.queue[0]
		switch {
		case head.owner == own && (m.kind.pardon || !head.handed):
			return
		case head.handed, m.gone[head.process]:
			m.drop(*head)
		default:
			head.handed = true
			m.holder = head.owner
			if head.process != noInbox {
				m.grants = append(m.grants, grantMessage{head.process, head.owner})
			}
		}
	}
}

// drop removes all waiters of a dead or stopped process.
func (m *model) drop(of place) {
	m.queue = slices.DeleteFunc(m.queue, func(p place) bool {
		return p.owner == of.owner || of.process != noInbox && p.process == of.process
	})
}

func (m *model) renew(owner string, handed bool) answer {
	if m.holder != owner {
		return answer{State: store.NotOurs}
	}
	if handed {
		m.leave(owner)
	}
	return answer{State: store.Granted}
}

func (m *model) release(owner string, undo bool, process int, next string) answer {
	if undo {
		m.undone[owner] = true
	}
	ours := m.holder == owner
	m.leave(owner)
	if !ours {
		m.hand("") // the key may be free, and the waiter that leaves would have been the first to notice it
		return answer{State: store.NotOurs}
	}
	m.holder = ""
	a := answer{State: store.Released}
	switch {
	case next == "":
		m.hand("")
	case m.undone[next]:
		m.hand("")
		a.Next = &answer{State: store.Undone}
	default:
		if !m.kind.quiet {
			m.hand("")
		}
		n := m.acquire(process, next, true)
		a.Next = &n
	}
	return a
}

// expire ends the lease without a release.
func (m *model) expire() { m.holder = "" }

func (m *model) kill(process int) { m.gone[process] = true }

// sent returns the messages that the last step has sent.
func (m *model) sent() []grantMessage {
	sent := m.grants
	m.grants = nil
	return sent
}
