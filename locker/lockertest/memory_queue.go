package lockertest

import (
	"slices"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/store"
)

// queue has the waiters for one key. The queue is deleted if no waiter comes or asks again for
// queueLife.
type queue struct {
	waiting []waiter // in the order in which they began to wait
	ends    time.Time
}

// waiter is one owner's entry in the queue. After a hand-off, the entry stays at the front of the
// queue until its owner confirms. If the key becomes free again while the entry is still there, the
// owner has not confirmed in time.
type waiter struct {
	owner    string
	inbox    string // "": the waiter receives no events
	mode     locker.Mode
	weight   int // the units that the waiter needs
	limit    int // the limit of the units; 0: the waiter waits for a lock
	hand     time.Duration
	block    int
	metadata string
	once     bool
	since    time.Time
	handed   bool
}

const (
	queueLife = time.Minute
	longWait  = 500 * time.Millisecond // a waiter that has waited for longer is notified of grants to other waiters
)

// queue returns key's queue unless it was forgotten. The caller holds m.mu, as for all methods
// below.
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

// enqueue puts c at the tail. An owner in the queue keeps its place. An owner whose hand-off lapsed
// also keeps its place, unless another owner was granted the key after that. The reason is that the
// process of an owner that asks is alive.
func (m *Memory) enqueue(c store.Claim) {
	waiting := m.queue(c.Key)
	if i := indexOf(waiting, c.Owner); i >= 0 {
		waiting[i].handed = false
	} else {
		w := waiterOf(c)
		w.since = m.now()
		waiting = append(waiting, w)
	}
	m.queues[c.Key] = queue{waiting: waiting, ends: m.now().Add(queueLife)}
}

func waiterOf(c store.Claim) waiter {
	return waiter{
		owner: c.Owner, inbox: c.Inbox, mode: c.Mode, weight: c.Weight, limit: c.Limit, hand: c.HandoffTTL, block: c.FenceCount,
		metadata: c.Metadata, once: c.Once > 0,
	}
}

// leave removes owner from the queue, and reports whether owner was in the queue.
func (m *Memory) leave(key, owner string) bool {
	waiting := m.queue(key)
	if indexOf(waiting, owner) < 0 {
		return false
	}
	m.setQueue(key, slices.DeleteFunc(waiting, func(w waiter) bool { return w.owner == owner }))
	return true
}

// dismiss removes the waiters for work that is done, and notifies them.
func (m *Memory) dismiss(key string) {
	m.setQueue(key, slices.DeleteFunc(m.queue(key), func(w waiter) bool {
		if w.once {
			m.publish(w.inbox, store.Event{Kind: store.EventDone, Key: key, Owner: w.owner})
		}
		return w.once
	}))
}

// waiters counts the waiters that were not handed the key.
func (m *Memory) waiters(key string) int {
	n := 0
	for _, w := range m.queue(key) {
		if !w.handed {
			n++
		}
	}
	return n
}

// place returns owner's place among the waiters, or the place that it would get.
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

// freed is called when key may be free. It serves the queue. If the queue is empty, freed notifies
// the waiters that are not in the queue that they should ask again.
func (m *Memory) freed(key string, turn locker.Mode) {
	m.hand(key, "", turn)
	m.hint(key)
}

// hint notifies all processes that key is free, unless a queue decides who gets the key.
func (m *Memory) hint(key string) {
	if _, held := m.lease(key); held || len(m.queue(key)) > 0 {
		return
	}
	for _, p := range m.processes {
		if p.subscribed() {
			p.send(store.Event{Kind: store.EventFree, Key: key})
		}
	}
}

// hand gives a free key to the first waiter that can take it. When it is the turn of the readers,
// or the first waiter is a reader, hand gives the key to all readers in the queue. When it is the
// turn of the asker, hand stops, because the asker takes the key itself. The first entry of the
// queue decides what happens:
//
//	it is the asker's                 it stays, and the key stays free
//	it was handed the key before      its lease lapsed unconfirmed: all entries of its process leave the queue
//	its inbox has no subscriber       its process is gone: all entries of its process leave the queue
//	otherwise                         it is granted the key for as long as it asked, and notified
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
		if head.limit > 0 {
			m.serve(key, nil)
			return
		}
		waiting = m.queue(key)
		waiting[0].handed = true
		l := m.put(key, head.owner, head.metadata, head.block, head.hand)
		m.publish(head.inbox, store.Event{
			Kind: store.EventGranted, Key: key, Owner: head.owner, Fence: l.fence, FenceCount: l.block, HandoffTTL: head.hand, At: m.at(),
			ReleasedBy: m.releaser,
		})
		m.notifyNext(key, head.inbox, head.hand)
		return
	}
}

// by is called when c releases the key. From then on, the events of grants carry c's traceparent,
// until the function that by returns is called.
func (m *Memory) by(c store.Claim) func() {
	m.releaser, _ = store.Signature(c.Metadata)
	return func() { m.releaser = "" }
}

// notifyNext is called when another waiter has the turn. It looks for the first waiter whose inbox
// differs from the parameter except. If this waiter has waited for longWait, notifyNext notifies it
// that the key is free after the duration hand at the latest.
func (m *Memory) notifyNext(key, except string, hand time.Duration) {
	if next, ok := m.next(key, except); ok && m.now().Sub(next.since) > longWait {
		m.notifyHead(key, next, hand)
	}
}

// dead reports whether the waiter w will not react. The asker always reacts.
func (m *Memory) dead(w waiter, asker string) bool {
	return w.owner != asker && (w.handed || w.inbox != "" && m.listener(w.inbox) == nil)
}

// drop removes w from the queue, and also all other entries of the process of w.
func (m *Memory) drop(key string, w waiter) {
	m.setQueue(key, slices.DeleteFunc(m.queue(key), func(other waiter) bool {
		return other.owner == w.owner || w.inbox != "" && other.inbox == w.inbox
	}))
}

// next returns the first waiter whose inbox has a listener and differs from the parameter except.
// So if the process with the inbox except does not react, another process can.
func (m *Memory) next(key, except string) (waiter, bool) {
	for _, w := range m.queue(key) {
		if !w.handed && w.inbox != except && m.listener(w.inbox) != nil {
			return w, true
		}
	}
	return waiter{}, false
}

// notifyHead notifies w that it is the head and that the key is free after hand at the latest.
func (m *Memory) notifyHead(key string, w waiter, hand time.Duration) {
	m.publish(w.inbox, store.Event{Kind: store.EventHead, Key: key, Owner: w.owner, HandoffTTL: hand})
}

func indexOf(waiting []waiter, owner string) int {
	return slices.IndexFunc(waiting, func(w waiter) bool { return w.owner == owner })
}
