//go:build !linux

package main

import "errors"

// pinned needs Linux: elsewhere a process cannot be told where to run.
func pinned(func() error) error {
	return errors.New("this row runs on one processor, which only Linux can promise")
}
