//go:build !linux

package main

import "errors"

// pinned needs Linux: other systems cannot bind a process to a processor.
func pinned(func() error) error {
	return errors.New("this row runs on one processor, which only Linux can promise")
}
