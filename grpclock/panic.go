package grpclock

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
)

// carrier carries a panic of another goroutine to the interceptor's goroutine, where recovery
// interceptors catch it. On any other goroutine, a panic ends the process.
type carrier struct{ first atomic.Pointer[carried] }

// carried is a panic that continues on another goroutine.
type carried struct {
	value any
	stack []byte
}

// Error returns the text for the Go runtime and for recovery interceptors.
func (c *carried) Error() string { return fmt.Sprintf("%v\n\n%s", c.value, c.stack) }

// Unwrap returns the panic's value if that is an error.
func (c *carried) Unwrap() error {
	err, _ := c.value.(error)
	return err
}

// errExited is the result of a goroutine that runtime.Goexit has ended.
var errExited = errors.New("the goroutine ended by runtime.Goexit")

// catch calls f. If f panics, catch keeps the panic and returns it as an error.
func (c *carrier) catch(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			p := &carried{v, debug.Stack()}
			c.first.CompareAndSwap(nil, p)
			err = p
		}
	}()
	return f()
}

// caught reports whether there was a panic.
func (c *carrier) caught() bool { return c.first.Load() != nil }

// resume panics if there was a panic.
func (c *carrier) resume() {
	if p := c.first.Load(); p != nil {
		panic(p)
	}
}
