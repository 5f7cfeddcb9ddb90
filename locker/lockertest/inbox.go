package lockertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// inbox is where a process is told, and what is under way to it. Events come in the order in which they were sent, from
// one goroutine, which exists only while there are any: so an event may come before the answer of the call that caused
// it, and after.
type inbox struct {
	ears    []*ear
	open    bool // subscribed
	deaf    bool // and the server forgot it
	mail    []letter
	telling chan struct{} // closed when the goroutine has ended; nil: there is none
	silent  chan struct{} // closed when nobody listens any more

	delay   time.Duration
	lose    int
	repeat  bool
	refusal error
}

// ear is one Engine that listens.
type ear struct {
	mu   sync.Mutex
	tell func(store.Event) // nil: not any more
}

func (e *ear) hear(event store.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tell != nil {
		e.tell(event)
	}
}

func (e *ear) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tell = nil
}

// letter is an event under way.
type letter struct {
	event store.Event
	due   time.Time
}

// Listen is the Notifier's step. Where two Engines listen to one Process they have no Inbox, because one would be told what
// is the other's: their waiters are granted silently.
func (p *Process) Listen(tell func(store.Event)) (stop func()) {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	b, e := &p.inbox, &ear{tell: tell}
	if b.ears = append(b.ears, e); len(b.ears) == 1 {
		b.silent = make(chan struct{})
	}
	return sync.OnceFunc(func() {
		e.close()
		if ended := p.forget(e); ended != nil {
			<-ended
		}
	})
}

// forget takes an ear away. With the last of them the goroutine ends that tells them; it returns a channel to wait for
// that, nil when there is nothing to wait for.
func (p *Process) forget(e *ear) <-chan struct{} {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	b := &p.inbox
	b.ears = slices.DeleteFunc(b.ears, func(other *ear) bool { return other == e })
	if len(b.ears) > 0 {
		return nil
	}
	b.open, b.mail = false, nil
	close(b.silent)
	return b.telling
}

// taken says whether an Engine listens already.
func (p *Process) taken() bool {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	return len(p.inbox.ears) > 0
}

// Inbox is the Notifier's step.
func (p *Process) Inbox(string) string {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	return p.address()
}

// address is the inbox's name while it is open, and one Engine's; memory.mu is held here and below.
func (p *Process) address() string {
	if !p.inbox.open || len(p.inbox.ears) != 1 {
		return ""
	}
	return p.name
}

// Open is the Notifier's step.
func (p *Process) Open(ctx context.Context, _ string) (string, error) {
	m, b := p.memory, &p.inbox
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := p.alive(); err != nil {
		return "", err
	}
	switch {
	case len(b.ears) == 0:
		return "", errors.New("lockertest: Open without Listen")
	case b.refusal != nil:
		return "", b.refusal
	case !b.open:
		m.pass(b.delay)
		b.open = len(b.ears) > 0
	}
	if err := p.alive(); err != nil {
		return "", err
	}
	return p.address(), ctx.Err()
}

// Reset is the Notifier's step.
func (p *Process) Reset(inbox string) {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	if inbox == p.name && p.inbox.open {
		p.reopen()
	}
}

// hears says whether events reach the process, whether it has opened its inbox or not.
func (p *Process) hears() bool { return len(p.inbox.ears) > 0 && !p.inbox.deaf && !p.dead }

// reopen subscribes afresh.
func (p *Process) reopen() {
	p.inbox.deaf = false
	if p.hears() {
		p.post(store.Event{Kind: store.EventReopened})
	}
}

// send puts an event that the server published on its way.
func (p *Process) send(e store.Event) {
	if p.inbox.lose > 0 {
		p.inbox.lose--
		return
	}
	p.post(e)
	if p.inbox.repeat {
		p.post(e)
	}
}

func (p *Process) post(e store.Event) {
	b := &p.inbox
	b.mail = append(b.mail, letter{event: e, due: time.Now().Add(b.delay)})
	if b.telling == nil {
		b.telling = make(chan struct{})
		go p.deliver()
	}
}

// deliver tells what is in the mail, each event when it is due and the process is not paused.
func (p *Process) deliver() {
	m, b := p.memory, &p.inbox
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(b.mail) > 0 {
		first := b.mail[0]
		if early := time.Until(first.due); early > 0 || p.paused != nil {
			p.wait(early)
			continue
		}
		b.mail = b.mail[1:]
		ears := slices.Clone(b.ears)
		m.mu.Unlock()
		for _, e := range ears {
			e.hear(first.event)
		}
		m.mu.Lock()
	}
	close(b.telling)
	b.telling = nil
}

// wait waits until the process goes on or, if it is not paused, for d; and no longer than somebody listens. memory.mu is
// held, but not meanwhile.
func (p *Process) wait(d time.Duration) {
	goOn, silent := p.paused, p.inbox.silent
	var due <-chan time.Time
	if goOn == nil {
		due = time.After(d)
	}
	p.memory.mu.Unlock()
	defer p.memory.mu.Lock()
	select {
	case <-due:
	case <-goOn:
	case <-silent:
	}
}
