package main

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arena is memory that the processes of a turn share. It shows what the other processes do, without
// commands to the server and without the measured locks.
type arena struct {
	inside atomic.Int64  // how many workers are in the critical section
	fence  atomic.Uint64 // the largest fence that was in the critical section

	// For readers and writers.
	readers atomic.Int64  // how many readers are inside
	phase   atomic.Uint64 // the largest fence of readers
	phases  atomic.Int64  // how often phase has grown

	// The rest is for the hand-offs between two processes.
	waiting    [2]atomic.Bool // which process waits for the lock
	acquired   atomic.Int64   // how often the lock was acquired
	releasedBy atomic.Int64   // index of the process + 1; 0 before the first release
	releasedAt atomic.Int64   // when that release started, by the clock of monotonic
}

// makeArena makes the file of an arena. The caller removes the file.
func makeArena() (name string, err error) {
	f, err := os.CreateTemp("", "bench-arena-*")
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.Name(), f.Truncate(int64(unsafe.Sizeof(arena{})))
}

// openArena maps the file of an arena into this process, until the process ends.
func openArena(name string) (*arena, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping remains valid
	mem, err := unix.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(arena{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*arena)(unsafe.Pointer(&mem[0])), nil // a page, so it is aligned
}

// A worker calls enter when it has just acquired the lock. It counts violations: another worker in
// the critical section, or a fence that did not grow.
func (a *arena) enter(h hold) (violations int) {
	if a.inside.Add(1) != 1 {
		violations++
	}
	if f, ok := h.(fenced); ok && a.fence.Swap(f.Fence()) >= f.Fence() {
		violations++
	}
	return violations
}

// A reader calls read when it has just acquired the lock. The reader decrements readers before its
// release.
func (a *arena) read(h hold) (violations int) {
	a.readers.Add(1)
	if a.inside.Load() != 0 {
		violations++
	}
	f, ok := h.(fenced)
	for ok {
		last := a.phase.Load()
		if f.Fence() <= last {
			if f.Fence() < last {
				violations++ // two phases overlap: the smaller fence is stale
			}
			break
		}
		if a.phase.CompareAndSwap(last, f.Fence()) {
			a.phases.Add(1)
			break
		}
	}
	return violations
}

// write is enter for a writer. Readers inside are violations too.
func (a *arena) write(h hold) (violations int) {
	if a.readers.Load() != 0 {
		violations++
	}
	return violations + a.enter(h)
}

// wrote is leave for a writer.
func (a *arena) wrote() (violations int) {
	violations = a.leave()
	if a.readers.Load() != 0 {
		violations++
	}
	return violations
}

// enterAmong is enter for a semaphore that has at most most holders. Their fences do not grow in
// the order in which they enter.
func (a *arena) enterAmong(most int) (violations int) {
	if a.inside.Add(1) > int64(most) {
		violations++
	}
	return violations
}

// leaveAmong is called before the release of a permit.
func (a *arena) leaveAmong() { a.inside.Add(-1) }

// leave is called before the release.
func (a *arena) leave() (violations int) {
	if a.inside.Add(-1) != 0 {
		violations++
	}
	return violations
}
