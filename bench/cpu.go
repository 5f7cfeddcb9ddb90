package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// ownCPU returns the user and system CPU time of this process so far.
func ownCPU() (time.Duration, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, err
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
