package simulator

import (
	"slices"

	"github.com/latchkit/latchkit/internal/store"
)

// model is the queue of one key, without time and network. It has the holder and the waiters in
// order, and computes the answer of each step. The tests compare servers with the model, step by
// step.
type model struct {
	holder     string
	queue      []queuePlace
	tombstones map[string]bool
	dead       map[int]bool // true for each killed process

	grants     []grantMessage // the messages that the last step has sent
	deviations deviations
}

// deviations has the permitted differences between a server and the model.
type deviations struct {
	pardon bool // the first waiter gets the free key when it asks, even if it did not confirm an earlier hand-off
}

// queuePlace is a waiter in the queue. The field handed is true if the waiter was granted the
// key by message and has made no call since then.
type queuePlace struct {
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
	Place int // the place in the queue, for the state Busy; 1 is the first place
	Fence uint64
}

func newModel(k deviations) *model {
	return &model{tombstones: make(map[string]bool), dead: make(map[int]bool), deviations: k}
}

func (m *model) index(owner string) int {
	return slices.IndexFunc(m.queue, func(p queuePlace) bool { return p.owner == owner })
}

func (m *model) leave(owner string) bool {
	i := m.index(owner)
	if i >= 0 {
		m.queue = slices.Delete(m.queue, i, i+1)
	}
	return i >= 0
}

func (m *model) acquire(process int, owner string, queue bool) answer {
	if m.tombstones[owner] {
		return answer{State: store.Undone}
	}
	if m.holder == owner {
		m.leave(owner)
		return answer{State: store.Granted}
	}
	m.handOff(owner)
	if m.holder == "" {
		m.leave(owner)
		m.holder = owner
		return answer{State: store.Granted}
	}
	if queue && m.index(owner) < 0 {
		m.queue = append(m.queue, queuePlace{owner: owner, process: process})
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

// handOff gives a free key to the first waiter that can take it. If the token caller is the
// first waiter, handOff stops, because the caller makes this call and gets the key by its
// answer.
func (m *model) handOff(caller string) {
	for m.holder == "" && len(m.queue) > 0 {
		head := &m.queue[0]
		switch {
		case head.owner == caller && (m.deviations.pardon || !head.handed):
			return
		case head.handed, m.dead[head.process]:
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

// drop removes the waiter head, and all other waiters of its process.
func (m *model) drop(head queuePlace) {
	m.queue = slices.DeleteFunc(m.queue, func(p queuePlace) bool {
		return p.owner == head.owner || head.process != noInbox && p.process == head.process
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

func (m *model) release(owner string, undo bool) answer {
	if undo {
		m.tombstones[owner] = true
	}
	a := answer{State: store.NotOurs}
	if m.holder == owner {
		m.holder, a.State = "", store.Released
	}
	m.leave(owner)
	m.handOff("") // also if the owner only waited: the key may be free, and this waiter will not ask for it
	return a
}

// expire ends the lease without a release.
func (m *model) expire() { m.holder = "" }

func (m *model) kill(process int) { m.dead[process] = true }

// takeGrants returns the messages that the last step has sent, and forgets them.
func (m *model) takeGrants() []grantMessage {
	sent := m.grants
	m.grants = nil
	return sent
}
