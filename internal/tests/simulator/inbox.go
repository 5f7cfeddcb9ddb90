package simulator

import "time"

// inbox is the channel of one process. Its name never changes, but its subscribers do.
type inbox struct {
	owner *process
	heard []*subscription // the subscribers that the server knows
}

// subscription is the subscription of one connection. The server and the process may believe
// different things about its state.
type subscription struct {
	inbox *inbox
	mute  bool // messages get lost, and the server does not notice it for a while
}

// message is what a script publishes.
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
	toldGranted messageKind = iota + 1 // the token holds the key
	toldHead                           // the token is first in the queue, and should ask when the claim of the present winner has ended
)

// listeners returns the result of PUBSUB NUMSUB.
func (in *inbox) listeners() int {
	return len(in.heard)
}

func (in *inbox) remove(s *subscription) {
	for i, h := range in.heard {
		if h == s {
			in.heard = append(in.heard[:i], in.heard[i+1:]...)
			return
		}
	}
}

// publish sends a message to all subscribers of an inbox. A message may get lost, be late, or
// arrive twice.
func (w *world) publish(key int, in *inbox, m message) {
	if in == nil {
		return
	}
	if w.spy != nil {
		w.spy(in, m)
		return
	}
	if m.kind == toldGranted {
		w.note(key, nil, "publishes a grant to", m.token, int64(m.fence))
	}
	for _, s := range in.heard {
		if w.chance(w.MessageLost) {
			w.note(key, nil, "the message is lost of", m.token, 0)
			continue
		}
		late := w.delay()
		if w.chance(w.MessageLate) {
			late += w.between(0, w.pick(200*time.Millisecond, 3*time.Second))
		}
		w.deliver(s, key, m, late)
		if w.chance(w.MessageTwice) {
			w.deliver(s, key, m, late+w.between(0, 2*time.Second))
		}
	}
}

func (w *world) deliver(s *subscription, key int, m message, late time.Duration) {
	p := s.inbox.owner
	w.after(late, p, func() {
		if p.sub != s || s.mute {
			return // the connection was closed or cut
		}
		p.told(key, m)
	})
}

// listen opens a subscription on a new connection, in place of an earlier subscription.
func (p *process) listen() {
	if p.opening {
		return
	}
	p.opening = true
	p.disconnect()
	p.subscribe()
}

// disconnect closes the subscription. The server notices the close a little later.
func (p *process) disconnect() {
	if old := p.sub; old != nil {
		p.sub = nil
		p.epoch++
		counted := p.w.delay()
		if old.mute {
			counted = p.w.between(0, 5*time.Second)
		}
		p.w.after(counted, nil, func() { p.inbox.remove(old) })
	}
}

func (p *process) subscribe() {
	w := p.w
	fresh := &subscription{inbox: p.inbox}
	life := w.server.life
	w.after(w.delay(), nil, func() {
		if w.server.down || w.server.life != life || p.dead || w.chance(w.LostRequest) {
			w.after(w.between(5*time.Millisecond, 300*time.Millisecond), p, p.subscribe)
			return
		}
		p.inbox.heard = append(p.inbox.heard, fresh)
		w.after(w.delay(), p, func() {
			if w.server.life != life {
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
