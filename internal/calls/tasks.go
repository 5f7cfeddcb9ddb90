package calls

import (
	"context"
	"sync"
)

// Tasks counts the tasks under way, so that a caller can wait for their end. Unlike in a
// sync.WaitGroup, new tasks may be counted during the wait. After Close, new tasks are refused. The
// zero value is ready for use.
type Tasks struct {
	mu     sync.Mutex
	n      int
	closed bool
	idle   chan struct{} // closed when n reaches 0; nil while no caller waits
}

// Enter counts one more task. It returns false after Close.
func (t *Tasks) Enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.n++
	return true
}

// Leave ends a task that Enter has counted.
func (t *Tasks) Leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}

// Close makes Enter refuse new tasks.
func (t *Tasks) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// Wait returns nil as soon as no task is under way, or ctx's error if ctx ends first.
func (t *Tasks) Wait(ctx context.Context) error {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.idle == nil {
		t.idle = make(chan struct{})
	}
	idle := t.idle
	t.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
