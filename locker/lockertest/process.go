package lockertest

import (
	"errors"
	"strconv"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// A Process is the view that one process has of a [Memory]. Two Processes have the same leases and
// queues, like two programs that share one Redis server, but each has an inbox of its own. Make a
// Process with [Memory.NewProcess] for each Engine. The methods of a Process disturb this process
// only. A Process is a [store.Store] with all the abilities that package store defines.
type Process struct {
	steps  // the methods of the Store, for Engines
	memory *Memory
	name   string // the name of the process's inbox

	// memory.mu guards all fields below.
	dead   bool
	paused chan struct{} // closed when the process is resumed; nil: it is not paused
	inbox  inbox
}

// NewProcess returns another process's view of m.
func (m *Memory) NewProcess() *Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &Process{memory: m, name: "process-" + strconv.Itoa(len(m.processes)+1)}
	p.steps = endpoint{p}
	m.processes = append(m.processes, p)
	return p
}

// errKilled is the error of the calls of a killed process. It is unclear whether such a call has
// run, as after a broken connection.
var errKilled = errors.New("lockertest: the process was killed")

// Die kills the process. Its inbox has no subscriber any more, and it receives no events. Its calls
// fail with unclear errors, because they may have run. Its leases expire.
func (p *Process) Die() {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	p.dead = true
	p.resume()
	p.inbox.mail = nil
}

// Pause stops the process, as SIGSTOP or a long garbage collection would. Its calls and its events
// hang until [Process.Resume]. The server does not notice: the inbox still has its subscriber.
//
// The goroutines of the test continue. Until Resume, they must not do the work of the stopped
// process.
func (p *Process) Pause() {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	if p.paused == nil && !p.dead {
		p.paused = make(chan struct{})
	}
}

// Resume lets a paused process continue.
func (p *Process) Resume() {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	p.resume()
}

func (p *Process) resume() {
	if p.paused != nil {
		close(p.paused)
		p.paused = nil
	}
}

// EventFaults are the faults of a process's events. Its zero value stands for no faults.
type EventFaults struct {
	// Deaf ends the process's subscription. The process does not notice that: its events are lost,
	// and the server answers that the inbox has no subscriber, until the process subscribes again.
	Deaf bool
	// Delay makes the subscription's connection slow. Every event, and every confirmation of a
	// subscription, comes later by this time. Answers to calls are not delayed.
	Delay time.Duration
	// Lose is how many events are lost, although the server sees a subscriber.
	Lose int
	// Repeat makes every event arrive twice.
	Repeat bool
	// Refusal is the error of each attempt to subscribe, as on a server whose users may not
	// subscribe.
	Refusal error
}

// Disturb replaces the faults of the process's events by f. If the process was deaf and f is not,
// the subscription is restored.
func (p *Process) Disturb(f EventFaults) {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	if p.inbox.cutOff && !f.Deaf {
		p.reopen()
	}
	p.inbox.cutOff, p.inbox.faults = f.Deaf, f
}

// alive blocks while the process is paused, and returns an error when the process was killed. The
// caller holds memory.mu, which alive unlocks while it blocks.
func (p *Process) alive() error {
	for p.paused != nil {
		goOn := p.paused
		p.memory.mu.Unlock()
		<-goOn
		p.memory.mu.Lock()
	}
	if p.dead {
		return errKilled
	}
	return nil
}

// listener returns the process that subscribes to inbox, or nil when there is none, like PUBSUB
// NUMSUB on Redis.
func (m *Memory) listener(inbox string) *Process {
	for _, p := range m.processes {
		if inbox != "" && p.address() == inbox && p.subscribed() {
			return p
		}
	}
	return nil
}

// publish sends e to the subscriber of inbox.
func (m *Memory) publish(inbox string, e store.Event) {
	if p := m.listener(inbox); p != nil {
		p.send(e)
	}
}
