package lockertest

import (
	"slices"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
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
	asksOnce bool
	queuedAt time.Time
	handed   bool
}

const (
	queueLife = time.Minute
	longWait  = 500 * time.Millisecond // a waiter that has waited for longer is notified of grants to other waiters
)

// queue returns the queue of key, or nil if it was forgotten. The caller holds m.mu, as for all
// methods below.
func (m *Memory) queue(key string) []waiter {
	q, ok := m.queues[key]
	if ok && !m.now().Before(q.ends) {
		delete(m.queues, key)
		return nil
	}
	return q.waiting
}

// setQueue stores waiting as the queue of key.
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
		w.queuedAt = m.now()
		waiting = append(waiting, w)
	}
	m.queues[c.Key] = queue{waiting: waiting, ends: m.now().Add(queueLife)}
}

// waiterOf returns the entry in the queue for the claim c.
func waiterOf(c store.Claim) waiter {
	return waiter{
		owner: c.Owner, inbox: c.Inbox, mode: c.Mode, weight: c.Weight, limit: c.Limit, hand: c.HandoffTTL, block: c.FenceCount,
		metadata: c.Metadata, asksOnce: c.OnceFor > 0,
	}
}

// leave removes owner from the queue of key, and reports whether owner was in the queue.
func (m *Memory) leave(key, owner string) bool {
	waiting := m.queue(key)
	if indexOf(waiting, owner) < 0 {
		return false
	}
	m.setQueue(key, slices.DeleteFunc(waiting, func(w waiter) bool { return w.owner == owner }))
	return true
}

// dismiss removes the waiters of key, because their work is done, and notifies them.
func (m *Memory) dismiss(key string) {
	m.setQueue(key, slices.DeleteFunc(m.queue(key), func(w waiter) bool {
		if w.asksOnce {
			m.publish(w.inbox, store.Event{Kind: store.EventDone, Key: key, Owner: w.owner})
		}
		return w.asksOnce
	}))
}

// waiters returns the number of waiters of key that were not handed the key.
func (m *Memory) waiters(key string) int {
	n := 0
	for _, w := range m.queue(key) {
		if !w.handed {
			n++
		}
	}
	return n
}

// place returns the place of owner among the waiters of key, or the place that it would get.
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

// serveQueue is called when key may be free. It serves the queue. If it is the turn of the readers,
// turn is Shared. If the queue is empty, serveQueue notifies the waiters that are not in the queue
// that they should ask again.
func (m *Memory) serveQueue(key string, turn locker.Mode) {
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
		if m.isDead(head, asker) {
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
		l := m.grantKey(key, head.owner, head.metadata, head.block, head.hand)
		m.publish(head.inbox, store.Event{
			Kind: store.EventGranted, Key: key, Owner: head.owner, Fence: l.fence, FenceCount: l.block, HandoffTTL: head.hand, At: m.clock(),
			ReleasedBy: m.releaser,
		})
		m.notifyNext(key, head.inbox, head.hand)
		return
	}
}

// setReleaser is called when c releases the key. From then on, the events of grants carry c's
// traceparent, until the function that setReleaser returns is called.
func (m *Memory) setReleaser(c store.Claim) func() {
	m.releaser, _ = store.Signature(c.Metadata)
	return func() { m.releaser = "" }
}

// notifyNext is called when another waiter of key has the turn. It looks for the first waiter
// whose inbox is not the parameter except. If this waiter has waited for longWait, notifyNext
// notifies it that the key is free after the duration hand at the latest.
func (m *Memory) notifyNext(key, except string, hand time.Duration) {
	if next, ok := m.next(key, except); ok && m.now().Sub(next.queuedAt) > longWait {
		m.notifyHead(key, next, hand)
	}
}

// isDead reports whether the waiter w will not react. The owner asker always reacts.
func (m *Memory) isDead(w waiter, asker string) bool {
	return w.owner != asker && (w.handed || w.inbox != "" && m.listener(w.inbox) == nil)
}

// drop removes w from the queue of key, and also all other entries of the process of w.
func (m *Memory) drop(key string, w waiter) {
	m.setQueue(key, slices.DeleteFunc(m.queue(key), func(other waiter) bool {
		return other.owner == w.owner || w.inbox != "" && other.inbox == w.inbox
	}))
}

// next returns the first waiter of key whose inbox has a listener and is not the parameter
// except, and whether there is one. So if the process with the inbox except does not react,
// another process can.
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

// indexOf returns the index of owner in waiting, or -1.
func indexOf(waiting []waiter, owner string) int {
	return slices.IndexFunc(waiting, func(w waiter) bool { return w.owner == owner })
}
