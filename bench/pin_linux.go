package main

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"
)

// pinned runs launch on one processor. The processes that it launches stay
// there, with all their threads; ours only passes by.
func pinned(launch func() error) (err error) {
	runtime.LockOSThread()
	// Deferred first, so that it comes last. A thread that could not be set free stays
	// locked, and dies with its goroutine.
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
			one.Set(cpu) // the last one we may use: the first often serves interrupts
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
