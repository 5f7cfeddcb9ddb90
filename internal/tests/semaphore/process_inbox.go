package semaphore

// message is a message that the server publishes.
type message struct {
	kind      messageKind
	token     string
	fence, at int64
	in        int64
}

type messageKind int

const (
	grantedMessage messageKind = iota
	headMessage
)

// hear handles a message.
func (p *process) hear(m message) {
	t := p.tokens[m.token]
	if t == nil {
		if m.kind == grantedMessage {
			p.answerUnknown(m.token)
		}
		return
	}
	k := p.cohorts[[2]int{t.weight, t.limit}]
	switch {
	case t.state == holds && m.kind == grantedMessage && p.w.server.off(IgnoreWhenHeld):
		p.answerUnknown(m.token)
	case t.state != waits:
	case m.kind == headMessage:
		t.place = 1
		t.later(k, min(m.in+milli, second))
	case m.kind == grantedMessage:
		since, slip := t.first, int64(0)
		if t.anchored {
			waited := m.at - t.server
			slip = 2 * (waited / 100)
			since = t.local + waited - waited/100
		}
		age := p.local() - since
		if p.w.server.off(FreshMessages) {
			since, age = p.local(), 0
		}
		if age < 0 || age > 100*milli+slip {
			t.ask(k)
			return
		}
		t.hold(k, since, claimFor, m.fence, true)
	}
}

func (p *process) answerUnknown(token string) {
	c := claim{token: token, proc: p, own: p.w.now + p.skew}
	p.w.call(p, func(s *server) answer { return s.release(c, false) }, func(answer, bool) {})
}
