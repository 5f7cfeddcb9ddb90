package main

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arena is memory that the processes of a turn share. Through this memory, each process sees
// the state of the other processes. The arena sends no commands to the server, and uses none of
// the measured locks.
type arena struct {
	inside atomic.Int64  // number of workers that are in the critical section now
	fence  atomic.Uint64 // the largest fence of any worker that was in the critical section

	// These fields are for readers and writers.
	readers atomic.Int64  // number of readers that hold the lock
	phase   atomic.Uint64 // the largest fence of a reader
	phases  atomic.Int64  // how often the field phase has grown

	// These fields are for the hand-offs between two processes.
	waiting    [2]atomic.Bool // whether each process waits for the lock
	acquired   atomic.Int64   // how often the lock was acquired
	releasedBy atomic.Int64   // 1 + the index of the process that has released last; 0 before the first release
	releasedAt atomic.Int64   // when the last release started, on the clock that monotonic reads
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
	return (*arena)(unsafe.Pointer(&mem[0])), nil // mem begins at a page, so the fields are aligned
}

// enter records that a worker has just acquired the lock with h. It returns the number of
// violations: 1 if another worker is in the critical section, and 1 more if the fence of h is
// not larger than the last fence.
func (a *arena) enter(h hold) (violations int) {
	if a.inside.Add(1) != 1 {
		violations++
	}
	if f, ok := h.(fenced); ok && a.fence.Swap(f.Fence()) >= f.Fence() {
		violations++
	}
	return violations
}

// enterReader records that a reader has just acquired the lock with h. It returns the number of
// violations. Before the reader releases the lock, it decrements the field readers.
func (a *arena) enterReader(h hold) (violations int) {
	a.readers.Add(1)
	if a.inside.Load() != 0 {
		violations++
	}
	f, ok := h.(fenced)
	for ok {
		last := a.phase.Load()
		if f.Fence() <= last {
			if f.Fence() < last {
				violations++ // a reader of an earlier phase comes late, so two phases overlap
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

// enterWriter does the work of enter for a writer. It also counts a violation if a reader holds the
// lock.
func (a *arena) enterWriter(h hold) (violations int) {
	if a.readers.Load() != 0 {
		violations++
	}
	return violations + a.enter(h)
}

// leaveWriter does the work of leave for a writer: a writer calls it before it releases the lock.
func (a *arena) leaveWriter() (violations int) {
	violations = a.leave()
	if a.readers.Load() != 0 {
		violations++
	}
	return violations
}

// leave records that a worker is about to release the lock. It returns the number of violations.
func (a *arena) leave() (violations int) {
	if a.inside.Add(-1) != 0 {
		violations++
	}
	return violations
}
