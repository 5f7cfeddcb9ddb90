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

// leave is called before the release.
func (a *arena) leave() (violations int) {
	if a.inside.Add(-1) != 0 {
		violations++
	}
	return violations
}
