package main

import (
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arena is memory that the processes of a turn share. What they learn of each
// other here costs no command, and does not depend on the locks it is about.
type arena struct {
	inside atomic.Int64  // how many are in the critical section
	fence  atomic.Uint64 // the largest that was ever inside

	// For readers and writers.
	readers atomic.Int64  // how many read
	phase   atomic.Uint64 // the largest fence of theirs
	phases  atomic.Int64  // how often that has grown

	// The rest is for the hand-offs between two processes.
	waiting    [2]atomic.Bool // who is asking for the lock
	acquired   atomic.Int64   // how often it was
	releasedBy atomic.Int64   // process + 1, 0 before the first
	releasedAt atomic.Int64   // when that release started, on the clock of monotonic
}

// makeArena makes the file of one, to be removed by the caller.
func makeArena() (name string, err error) {
	f, err := os.CreateTemp("", "bench-arena-*")
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.Name(), f.Truncate(int64(unsafe.Sizeof(arena{})))
}

// openArena maps it into this process, until the process ends.
func openArena(name string) (*arena, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping stays
	mem, err := unix.Mmap(int(f.Fd()), 0, int(unsafe.Sizeof(arena{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*arena)(unsafe.Pointer(&mem[0])), nil // a page, so it is aligned
}

// enter is called by who has just got the lock. It counts what must not be:
// somebody else inside, or a fence that did not grow.
func (a *arena) enter(h hold) (violations int) {
	if a.inside.Add(1) != 1 {
		violations++
	}
	if f, ok := h.(fenced); ok && a.fence.Swap(f.Fence()) >= f.Fence() {
		violations++
	}
	return violations
}

// read is called by who has just begun to read; readers goes down before the release.
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
				violations++ // there can be only one phase, so it is from one that is over
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

// write is enter for who must be alone among readers too.
func (a *arena) write(h hold) (violations int) {
	if a.readers.Load() != 0 {
		violations++
	}
	return violations + a.enter(h)
}

// wrote is leave.
func (a *arena) wrote() (violations int) {
	violations = a.leave()
	if a.readers.Load() != 0 {
		violations++
	}
	return violations
}

// leave is called before the release.
func (a *arena) leave() (violations int) {
	if a.inside.Add(-1) != 0 {
		violations++
	}
	return violations
}
