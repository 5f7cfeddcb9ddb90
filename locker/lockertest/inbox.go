package lockertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// inbox delivers the events of a process, and keeps the events that are still on their way. One
// goroutine delivers events in the order in which they were sent. This goroutine exists only while
// there are events, and runs at the same time as the calls of the Store. So an event may come
// before or after the answer to the call that caused the event.
type inbox struct {
	listeners []*listener
	open      bool // the process has subscribed
	cutOff    bool // the server has forgotten the subscription, and the process has not noticed this
	mail      []letter
	notifying chan struct{} // closed when the goroutine has ended; nil: there is no goroutine
	silent    chan struct{} // closed when no Engine listens any more

	faults EventFaults // cutOff says whether the process is deaf now
}

// listener is one Engine that listens.
type listener struct {
	mu     sync.Mutex
	notify func(store.Event) // nil when the Engine does not listen any more
}

// receive passes event to the Engine, unless the Engine does not listen any more.
func (e *listener) receive(event store.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.notify != nil {
		e.notify(event)
	}
}

// close makes the Engine receive no further events.
func (e *listener) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.notify = nil
}

// letter is an event on its way to the process.
type letter struct {
	event store.Event
	due   time.Time
}

// Listen implements store.Notifier. While two Engines listen to one Process, Inbox returns "",
// because each Engine would receive the events of the other Engine. So the waiters of both Engines
// receive no events, and poll instead.
func (p endpoint) Listen(notify func(store.Event)) (stop func()) {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	b, e := &p.inbox, &listener{notify: notify}
	if b.listeners = append(b.listeners, e); len(b.listeners) == 1 {
		b.silent = make(chan struct{})
	}
	return sync.OnceFunc(func() {
		e.close()
		if ended := p.forget(e); ended != nil {
			<-ended
		}
	})
}

// forget removes the listener e. When no listener is left, the goroutine that delivers events ends.
// forget returns a channel that is closed when this goroutine has ended, or nil if there is none.
func (p *Process) forget(e *listener) <-chan struct{} {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	b := &p.inbox
	b.listeners = slices.DeleteFunc(b.listeners, func(other *listener) bool { return other == e })
	if len(b.listeners) > 0 {
		return nil
	}
	b.open, b.mail = false, nil
	close(b.silent)
	return b.notifying
}

// hasListener reports whether an Engine already listens to this Process.
func (p *Process) hasListener() bool {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	return len(p.inbox.listeners) > 0
}

// Inbox implements store.Notifier.
func (p endpoint) Inbox(string) string {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	return p.address()
}

// address returns the inbox's name while the inbox is open and belongs to one Engine. Otherwise it
// returns "". The caller holds memory.mu, as for the methods subscribed, reopen, send and wait.
func (p *Process) address() string {
	if !p.inbox.open || len(p.inbox.listeners) != 1 {
		return ""
	}
	return p.name
}

// Open implements store.Notifier.
func (p endpoint) Open(ctx context.Context, _ string) (string, error) {
	m, b := p.memory, &p.inbox
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := p.alive(); err != nil {
		return "", err
	}
	switch {
	case len(b.listeners) == 0:
		return "", errors.New("lockertest: Open without Listen")
	case b.faults.Refusal != nil:
		return "", b.faults.Refusal
	case !b.open:
		m.sleep(b.faults.Delay)
		b.open = len(b.listeners) > 0
	}
	if err := p.alive(); err != nil {
		return "", err
	}
	return p.address(), ctx.Err()
}

// Reset implements store.Notifier.
func (p endpoint) Reset(inbox string) {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	if inbox == p.name && p.inbox.open {
		p.reopen()
	}
}

// subscribed reports whether the server can send events to the process. The result may be true even
// if the inbox is not open.
func (p *Process) subscribed() bool { return len(p.inbox.listeners) > 0 && !p.inbox.cutOff && !p.dead }

// reopen subscribes again.
func (p *Process) reopen() {
	p.inbox.cutOff = false
	if p.subscribed() {
		p.enqueue(store.Event{Kind: store.EventReopened})
	}
}

// send puts e, an event that the server has published, on its way to the process.
func (p *Process) send(e store.Event) {
	if p.inbox.faults.Lose > 0 {
		p.inbox.faults.Lose--
		return
	}
	p.enqueue(e)
	if p.inbox.faults.Repeat {
		p.enqueue(e)
	}
}

// enqueue adds e to the events on their way.
func (p *Process) enqueue(e store.Event) {
	b := &p.inbox
	b.mail = append(b.mail, letter{event: e, due: time.Now().Add(b.faults.Delay)})
	if b.notifying == nil {
		b.notifying = make(chan struct{})
		go p.deliver()
	}
}

// deliver delivers the sent events. Each event is delivered when it is due and the process is not
// paused.
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
		listeners := slices.Clone(b.listeners)
		m.mu.Unlock()
		for _, e := range listeners {
			e.receive(first.event)
		}
		m.mu.Lock()
	}
	close(b.notifying)
	b.notifying = nil
}

// wait waits for d, or, if the process is paused, until it is resumed. It returns early when no
// Engine listens any more. The caller holds memory.mu, which is unlocked during the wait.
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
