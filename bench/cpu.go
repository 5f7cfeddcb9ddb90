package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// ownCPU returns the CPU time that this process has used so far, in user mode and in the kernel.
func ownCPU() (time.Duration, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, err
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
