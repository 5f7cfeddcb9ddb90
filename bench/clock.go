package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic reads a clock that all processes of the machine share and that no program can set. The
// monotonic part of time.Now is valid in one process only.
func monotonic() time.Duration { return read(unix.CLOCK_MONOTONIC) }

// sinceBoot turns a time of the wall clock, such as a key's expiry, into a time of the clock that
// monotonic reads. If somebody has set the wall clock between that time and now, the result is
// wrong.
func sinceBoot(wall time.Time) time.Duration {
	return monotonic() + wall.Sub(time.Unix(0, int64(read(unix.CLOCK_REALTIME))))
}

func read(clock int32) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(clock, &now); err != nil {
		panic(err) // cannot happen, because the system has both clocks that the bench reads
	}
	return time.Duration(now.Nano())
}

// sleepUntil returns when monotonic returns t or more.
func sleepUntil(t time.Duration) { time.Sleep(t - monotonic()) }
