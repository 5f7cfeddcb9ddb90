package main

import (
	"errors"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// runPinned runs the function launch on one processor. All threads of the processes that launch
// starts stay on that processor. This process is pinned to the processor only until launch
// returns.
func runPinned(launch func() error) (err error) {
	runtime.LockOSThread()
	// UnlockOSThread must run last, after the thread may use all processors again, so it is
	// deferred first. If the thread cannot get its old processors back, the goroutine keeps the
	// thread, and the thread ends with the goroutine.
	free := true
	defer func() {
		if free {
			runtime.UnlockOSThread()
		}
	}()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return err
	}
	for cpu := range len(all) * 64 {
		if all.IsSet(cpu) {
			one.Zero()
			one.Set(cpu) // the last usable processor, because the first one often serves interrupts
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	defer func() {
		freed := unix.SchedSetaffinity(0, &all)
		free = freed == nil
		err = errors.Join(err, freed)
	}()
	return launch()
}

// nap sleeps for d, with an error of some 50 µs. time.Sleep in a process with nothing else to do
// may sleep a millisecond longer, because it waits for network events with a limit in milliseconds.
func nap(d time.Duration) {
	if d <= 0 {
		return
	}
	for left := unix.NsecToTimespec(int64(d)); unix.Nanosleep(&left, &left) == unix.EINTR; {
	}
}
