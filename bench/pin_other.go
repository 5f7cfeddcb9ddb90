//go:build !linux

package main

import (
	"errors"
	"time"
)

// runPinned returns an error, because only Linux can bind a process to a processor.
func runPinned(func() error) error {
	return errors.New("this row runs on one processor, which only Linux can promise")
}

// nap sleeps for at least d.
func nap(d time.Duration) { time.Sleep(d) }
