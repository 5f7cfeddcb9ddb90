package lockertest

import "time"

// The functions below simulate what can happen to a server besides the calls of its Lockers.

// Steal gives key to another holder, as if the present holder had been paused until after the end
// of its lease. The present holder learns of the loss at its next renewal, release or extension.
// The new holder never renews the lease, and keeps the key until [Memory.Free]. If the key has
// permits of a semaphore, Steal takes all of them.
func (m *Memory) Steal(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steal(key)
}

// steal does what Steal does, and returns the fence of the new holder. The caller holds m.mu.
func (m *Memory) steal(key string) (fence uint64) {
	l := lease{owner: stranger, grantedAt: m.now()}
	l.fence, l.block = m.mint(1)
	m.leases[key] = l
	return l.fence
}

// stranger is the owner of a lease that was stolen.
const stranger = "stranger"

// Occupy makes another library hold key. With ttl 0 the holder stays until [Memory.Free].
func (m *Memory) Occupy(key string, ttl time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := lease{foreign: true, grantedAt: m.now()}
	if ttl > 0 {
		l.ends = m.now().Add(ttl)
	}
	m.leases[key] = l
}

// Free removes the holder of key, or all its permits, as another library or an operator would.
// Waiters in the queue are not notified. They find the key free when they ask again.
func (m *Memory) Free(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.leases, key)
	m.hint(key)
}

// Wipe deletes everything except the fence counter, like a server that restarts empty and makes
// fences from its clock. Every process subscribes again, and is notified that events may be lost.
func (m *Memory) Wipe() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget()
	for _, p := range m.processes {
		p.reopen()
	}
}

// StepClock moves the server's clock by d, or backwards when d is negative, as an administrator or
// a failover would. Leases end sooner by d, or later when d is negative.
func (m *Memory) StepClock(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clockLead += d
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

// Queued returns how many entries the queues of all keys have. It also counts the entries of
// waiters that were handed a key and have not confirmed it.
func (m *Memory) Queued() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for key := range m.queues {
		n += len(m.queue(key))
	}
	return n
}
