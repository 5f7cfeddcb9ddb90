package lockertest

import (
	"slices"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

// queue is who waits for one key. The server forgets it when nobody has joined or asked again for queueLife.
type queue struct {
	waiting []waiter // in the order in which they came
	ends    time.Time
}

// waiter is one owner's entry. Once it was handed the key it stays, ahead of all others, until it confirms: an entry that
// is found like that when the key is free again was not confirmed in time.
type waiter struct {
	owner    string
	inbox    string // "": it is told nothing
	mode     locker.Mode
	hand     time.Duration
	block    int
	metadata string
	once     bool
	since    time.Time
	handed   bool
}

const (
	queueLife = time.Minute
	longWait  = 500 * time.Millisecond // who has waited longer watches over who was granted the key
)

// queue returns key's queue unless it was forgotten; m.mu is held here and below.
func (m *Memory) queue(key string) []waiter {
	q, ok := m.queues[key]
	if ok && !m.now().Before(q.ends) {
		delete(m.queues, key)
		return nil
	}
	return q.waiting
}

func (m *Memory) setQueue(key string, waiting []waiter) {
	if len(waiting) == 0 {
		delete(m.queues, key)
		return
	}
	q := m.queues[key]
	q.waiting = waiting
	m.queues[key] = q
}

// enqueue puts c at the tail. Who is in the queue keeps the place; also one whose lease was handed over and lapsed, and
// was not given to the next yet: it asks, so it lives.
func (m *Memory) enqueue(c store.Claim) {
	waiting := m.queue(c.Key)
	if i := indexOf(waiting, c.Owner); i >= 0 {
		waiting[i].handed = false
	} else {
		waiting = append(waiting, waiter{
			owner: c.Owner, inbox: c.Inbox, mode: c.Mode, hand: c.HandoffTTL, block: c.FenceCount, metadata: c.Metadata, once: c.Once > 0,
			since: m.now(),
		})
	}
	m.queues[c.Key] = queue{waiting: waiting, ends: m.now().Add(queueLife)}
}

// leave takes owner out of the queue, and says whether it was there.
func (m *Memory) leave(key, owner string) bool {
	waiting := m.queue(key)
	if indexOf(waiting, owner) < 0 {
		return false
	}
	m.setQueue(key, slices.DeleteFunc(waiting, func(w waiter) bool { return w.owner == owner }))
	return true
}

// dismiss sends those away who wait for work that is done now.
func (m *Memory) dismiss(key string) {
	m.setQueue(key, slices.DeleteFunc(m.queue(key), func(w waiter) bool {
		if w.once {
			m.publish(w.inbox, store.Event{Kind: store.EventDone, Key: key, Owner: w.owner})
		}
		return w.once
	}))
}

// waiters counts who really waits.
func (m *Memory) waiters(key string) int {
	n := 0
	for _, w := range m.queue(key) {
		if !w.handed {
			n++
		}
	}
	return n
}

// place is owner's place among those who wait, or would be.
func (m *Memory) place(key, owner string) int {
	place := 1
	for _, w := range m.queue(key) {
		if w.owner == owner {
			break
		}
		if !w.handed {
			place++
		}
	}
	return place
}

// freed is called when key may be free: it lets the queue go on. Where nobody is in the queue, whoever waits without one
// is told to ask again.
func (m *Memory) freed(key string, turn locker.Mode) {
	m.hand(key, "", turn)
	m.hint(key)
}

// hint tells everybody that key is free, unless a queue decides who gets it.
func (m *Memory) hint(key string) {
	if _, held := m.lease(key); held || len(m.queue(key)) > 0 {
		return
	}
	for _, p := range m.processes {
		if p.hears() {
			p.send(store.Event{Kind: store.EventFree, Key: key})
		}
	}
}

// hand gives a free key to the first in the queue who can take it, or to all readers there, when it is their turn or the first
// is one. An asker whose turn it is takes the key itself, so there it stops. What happens to an entry that it finds at the head:
//
//	the asker's                       it stays, the key stays free
//	handed the key before             its lease lapsed unconfirmed: all of its process leave the queue
//	nobody listens at its inbox       its process is gone: the same
//	otherwise                         it is granted the key for as long as it asked, and told so
func (m *Memory) hand(key, asker string, turn locker.Mode) {
	if _, held := m.lease(key); held {
		return
	}
	for {
		waiting := m.queue(key)
		if len(waiting) == 0 {
			return
		}
		head := waiting[0]
		if m.dead(head, asker) {
			m.drop(key, head)
			continue
		}
		if readers := m.readersIn(key, asker); len(readers) > 0 && (turn == locker.Shared || head.mode == locker.Shared) {
			m.openPhase(key, readers, asker)
			return
		}
		if head.owner == asker {
			return
		}
		waiting = m.queue(key)
		waiting[0].handed = true
		l := m.put(key, head.owner, head.metadata, head.block, head.hand)
		m.publish(head.inbox, store.Event{
			Kind: store.EventGranted, Key: key, Owner: head.owner, Fence: l.fence, FenceCount: l.block, HandoffTTL: head.hand, At: m.at(),
		})
		m.tellNext(key, head.inbox, head.hand)
		return
	}
}

// tellNext tells the first who has waited for long who else was served, and for how long at least.
func (m *Memory) tellNext(key, except string, hand time.Duration) {
	if next, ok := m.next(key, except); ok && m.now().Sub(next.since) > longWait {
		m.tellHead(key, next, hand)
	}
}

// dead says whether w will not react; an asker does.
func (m *Memory) dead(w waiter, asker string) bool {
	return w.owner != asker && (w.handed || w.inbox != "" && m.listener(w.inbox) == nil)
}

// drop takes w, and all of its process, out of the queue.
func (m *Memory) drop(key string, w waiter) {
	m.setQueue(key, slices.DeleteFunc(m.queue(key), func(other waiter) bool {
		return other.owner == w.owner || w.inbox != "" && other.inbox == w.inbox
	}))
}

// next returns the first who waits and can be told so, at another inbox than except: if that one does not react, somebody
// else must.
func (m *Memory) next(key, except string) (waiter, bool) {
	for _, w := range m.queue(key) {
		if !w.handed && w.inbox != except && m.listener(w.inbox) != nil {
			return w, true
		}
	}
	return waiter{}, false
}

// tellHead tells w that the key is free when hand is over, at the latest, and that it is the first to ask then.
func (m *Memory) tellHead(key string, w waiter, hand time.Duration) {
	m.publish(w.inbox, store.Event{Kind: store.EventHead, Key: key, Owner: w.owner, HandoffTTL: hand})
}

func indexOf(waiting []waiter, owner string) int {
	return slices.IndexFunc(waiting, func(w waiter) bool { return w.owner == owner })
}
