package simulator

import "time"

// inbox is the channel of one process. The name of the channel never changes, but its subscribers
// change.
type inbox struct {
	owner       *process
	subscribers []*subscription // the subscribers that the server knows
}

// subscription is the subscription of one connection. The process may still use a subscription
// that the server has already closed, and the server may still count a subscription that the
// process has closed.
type subscription struct {
	inbox *inbox
	mute  bool // true: messages get lost, and the server does not notice this for some time
}

// message is a message that a script publishes.
type message struct {
	kind  messageKind
	token token
	fence uint64
	block int
	claim time.Duration
	at    micros
}

type messageKind uint8

const (
	messageGranted messageKind = iota + 1 // the token holds the key
	messageHead                           // the token is first in the queue, and should ask when the claim of the present winner has ended
)

// listeners returns the number of subscribers, as PUBSUB NUMSUB does.
func (in *inbox) listeners() int {
	return len(in.subscribers)
}

func (in *inbox) remove(s *subscription) {
	for i, h := range in.subscribers {
		if h == s {
			in.subscribers = append(in.subscribers[:i], in.subscribers[i+1:]...)
			return
		}
	}
}

// publish sends the message m to all subscribers of the inbox box. A message may get lost, be
// late, or arrive twice.
func (w *world) publish(key int, box *inbox, m message) {
	if box == nil {
		return
	}
	if w.spy != nil {
		w.spy(box, m)
		return
	}
	if m.kind == messageGranted {
		w.note(key, nil, "publishes a grant to", m.token, int64(m.fence))
	}
	for _, s := range box.subscribers {
		if w.chance(w.MessageLost) {
			w.note(key, nil, "the message is lost of", m.token, 0)
			continue
		}
		late := w.delay()
		if w.chance(w.MessageLate) {
			late += w.randomBetween(0, w.pick(200*time.Millisecond, 3*time.Second))
		}
		w.deliver(s, key, m, late)
		if w.chance(w.MessageTwice) {
			w.deliver(s, key, m, late+w.randomBetween(0, 2*time.Second))
		}
	}
}

func (w *world) deliver(s *subscription, key int, m message, late time.Duration) {
	p := s.inbox.owner
	w.schedule(late, p, func() {
		if p.sub != s || s.mute {
			return // the process has closed this connection, or messages on it get lost
		}
		p.onMessage(key, m)
	})
}

// listen closes the subscription of the process, and opens another one on a new connection.
func (p *process) listen() {
	if p.opening {
		return
	}
	p.opening = true
	p.disconnect()
	p.subscribe()
}

// disconnect closes the subscription of the process. The server notices this a little later.
func (p *process) disconnect() {
	if old := p.sub; old != nil {
		p.sub = nil
		p.epoch++
		counted := p.w.delay()
		if old.mute {
			counted = p.w.randomBetween(0, 5*time.Second)
		}
		p.w.schedule(counted, nil, func() { p.inbox.remove(old) })
	}
}

func (p *process) subscribe() {
	w := p.w
	fresh := &subscription{inbox: p.inbox}
	life := w.server.restarts
	w.schedule(w.delay(), nil, func() {
		if w.server.isDown || w.server.restarts != life || p.dead || w.chance(w.LostRequest) {
			w.schedule(w.randomBetween(5*time.Millisecond, 300*time.Millisecond), p, p.subscribe)
			return
		}
		p.inbox.subscribers = append(p.inbox.subscribers, fresh)
		w.schedule(w.delay(), p, func() {
			if w.server.restarts != life {
				p.subscribe()
				return
			}
			p.sub, p.opening = fresh, false
			p.subscribedAt = p.now()
			p.epoch++
			w.note(-1, p, "listens", 0, 0)
			p.recheckAll()
		})
	})
}
