package lockertest

import "time"

// What happens to a server beside the calls of its Lockers.

// Steal gives key to a stranger, as if its holder had been paused past its lease and somebody else had come. The holder
// learns of it at its next renewal, release or extension. The stranger never renews and stays until [Memory.Free].
func (m *Memory) Steal(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := lease{owner: "stranger", since: m.now()}
	l.fence, l.block = m.mint(1)
	m.leases[key] = l
}

// Occupy puts a holder at key that is no latchkit lease: another library's. ttl 0: it never ends.
func (m *Memory) Occupy(key string, ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := lease{foreign: true, since: m.now()}
	if ttl > 0 {
		l.ends = m.now().Add(ttl)
	}
	m.leases[key] = l
}

// Free takes whoever holds key away, as another library or an operator would: who waits in the queue is not told, and
// finds out when it asks again.
func (m *Memory) Free(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leases, key)
	m.hint(key)
}

// Wipe forgets all but the fence counter, like a server that restarts empty and mints fences from its clock. Every process
// subscribes afresh, and is told so.
func (m *Memory) Wipe() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget()
	for _, p := range m.processes {
		p.reopen()
	}
}

// StepClock moves the server's clock by d, forwards or, when d is negative, backwards, as an administrator or a failover
// would: leases end sooner or later by that much.
func (m *Memory) StepClock(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ahead += d
}

// Len returns how many keys are held or kept.
func (m *Memory) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for key := range m.leases {
		if _, ok := m.lease(key); ok {
			n++
		}
	}
	return n
}

// Queued returns how many entries the queues of all keys have, those that were handed their key and have not confirmed
// it included.
func (m *Memory) Queued() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for key := range m.queues {
		n += len(m.queue(key))
	}
	return n
}
