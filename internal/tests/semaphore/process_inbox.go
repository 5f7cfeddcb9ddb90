package semaphore

// message is a message that the server publishes to a process.
type message struct {
	kind      messageKind
	token     string
	fence, at int64
	delay     int64
}

type messageKind int

const (
	grantedMessage messageKind = iota
	headMessage
)

// onMessage handles the message m.
func (p *process) onMessage(m message) {
	t := p.tokens[m.token]
	if t == nil {
		if m.kind == grantedMessage {
			p.answerUnknown(m.token)
		}
		return
	}
	k := p.cohorts[[2]int{t.weight, t.limit}]
	switch {
	case t.state == holds && m.kind == grantedMessage && p.w.server.omits(IgnoreWhenHeld):
		p.answerUnknown(m.token)
	case t.state != waits:
	case m.kind == headMessage:
		t.place = 1
		t.askAfter(k, min(m.delay+milli, second))
	case m.kind == grantedMessage:
		since, slip := t.first, int64(0)
		if t.anchored {
			waited := m.at - t.serverTime
			slip = 2 * (waited / 100)
			since = t.sentAt + waited - waited/100
		}
		age := p.localTime() - since
		if p.w.server.omits(FreshMessages) {
			since, age = p.localTime(), 0
		}
		if age < 0 || age > 100*milli+slip {
			t.ask(k)
			return
		}
		t.beginLease(k, since, claimFor, m.fence, true)
	}
}

func (p *process) answerUnknown(token string) {
	c := claim{token: token, proc: p, own: p.w.now + p.skew}
	p.w.call(p, func(s *server) answer { return s.release(c, false) }, func(answer, bool) {})
}
