package lockertest

import (
	"errors"
	"strconv"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// Process is how one process sees a [Memory]: the same leases and queues, and an inbox of its own, as two programs see
// one Redis. Make one with [Memory.NewProcess] for each Engine. Its knobs strike this process only.
type Process struct {
	memory *Memory
	name   string // of its inbox

	// All below is guarded by memory.mu.
	dead   bool
	paused chan struct{} // closed when it goes on; nil: it is not paused
	inbox  inbox
}

// NewProcess returns another process's view of m.
func (m *Memory) NewProcess() *Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &Process{memory: m, name: "process-" + strconv.Itoa(len(m.processes)+1)}
	m.processes = append(m.processes, p)
	return p
}

// errKilled leaves the caller in doubt, like a connection that broke.
var errKilled = errors.New("lockertest: the process was killed")

// Die kills the process: nobody listens at its inbox any more, it is told nothing, and its calls fail without saying
// whether they ran. What it holds runs out.
func (p *Process) Die() {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	p.dead = true
	p.resume()
	p.inbox.mail = nil
}

// Pause stops the process, as SIGSTOP or a long garbage collection would: its calls and the events for it hang until
// [Process.Resume]. The server does not notice: the inbox still counts as one where somebody listens.
//
// The goroutines of the test go on, so let them do nothing meanwhile that a stopped process could not do.
func (p *Process) Pause() {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	if p.paused == nil && !p.dead {
		p.paused = make(chan struct{})
	}
}

// Resume lets a paused process go on.
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

// Deafen takes the process's subscription away without its knowing: events for it are lost, and the server says that
// nobody listens there, until the process subscribes afresh ([Process.Reset]). Deafen(false) does that for it.
func (p *Process) Deafen(deaf bool) {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	if p.inbox.deaf && !deaf {
		p.reopen()
	}
	p.inbox.deaf = deaf
}

// DelayEvents makes the connection on which the process is told slow: every event comes d later, and so do the
// confirmations of Open and Reset. Answers to calls overtake them. 0 ends the delay.
func (p *Process) DelayEvents(d time.Duration) {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	p.inbox.delay = d
}

// LoseEvents makes the next n events for this process get lost, although the server saw somebody listen.
func (p *Process) LoseEvents(n int) {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	p.inbox.lose = n
}

// RepeatEvents makes every event for this process come twice.
func (p *Process) RepeatEvents(on bool) {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	p.inbox.repeat = on
}

// FailOpen makes Open return err, as on a server whose users may not subscribe, until called again with nil.
func (p *Process) FailOpen(err error) {
	p.memory.mu.Lock()
	defer p.memory.mu.Unlock()
	p.inbox.refusal = err
}

// alive hangs while the process is paused, and fails when it was killed. memory.mu is held, but not while it hangs.
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

// listener returns the process that listens at an inbox, nil when nobody does: what PUBSUB NUMSUB says on Redis.
func (m *Memory) listener(inbox string) *Process {
	for _, p := range m.processes {
		if inbox != "" && p.address() == inbox && p.hears() {
			return p
		}
	}
	return nil
}

// publish tells who listens at an inbox.
func (m *Memory) publish(inbox string, e store.Event) {
	if p := m.listener(inbox); p != nil {
		p.send(e)
	}
}
