//go:build !linux

package main

import "errors"

// runPinned returns an error, because only Linux can bind a process to a processor.
func runPinned(func() error) error {
	return errors.New("this row runs on one processor, which only Linux can promise")
}
