package queue

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

	grants  []grantMessage // the messages that the last step has sent
	omitted rule
}

// rule is a rule of the queue that a model can leave out.
type rule string

const (
	tombstones   rule = "an acquire that was undone is refused"
	noOvertaking rule = "a newcomer does not overtake"
	lapsedLoses  rule = "who lets a handed key lapse loses the places of its process"
	deadAreLeft  rule = "the dead are passed over"
	confirms     rule = "a renewal confirms a hand-off"
	leaverHands  rule = "who gives up hands a free key on"
)

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

// newModel returns a model without one rule; "": with all rules.
func newModel(omitted rule) *model {
	return &model{tombstones: make(map[string]bool), dead: make(map[int]bool), omitted: omitted}
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
	if m.tombstones[owner] && m.omitted != tombstones {
		return answer{State: store.Undone}
	}
	if m.holder == owner {
		m.leave(owner)
		return answer{State: store.Granted}
	}
	if m.omitted != noOvertaking {
		m.handOff(owner)
	}
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
		case head.owner == caller: // also if it did not confirm an earlier hand-off
			return
		case head.handed, m.dead[head.process] && m.omitted != deadAreLeft:
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
		return p.owner == head.owner || m.omitted != lapsedLoses && head.process != noInbox && p.process == head.process
	})
}

func (m *model) renew(owner string, handed bool) answer {
	if m.holder != owner {
		return answer{State: store.NotOurs}
	}
	if handed && m.omitted != confirms {
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
	if m.leave(owner) && m.omitted == leaverHands {
		return a
	}
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
