package lockertest

import (
	"context"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
)

// NewLocker returns an Engine on s. The Engine is closed when the test ends, and the test fails if
// work is still under way two minutes later. In a testing/synctest bubble, make both s and the
// Engine inside the bubble. A second Locker on the same [Memory] needs a [Process] of its own.
func NewLocker(t testing.TB, s store.Store, opts ...locker.Option) *locker.Engine {
	t.Helper()
	if m, ok := s.(*Memory); ok && m.hasListener() {
		s = m.NewProcess()
	}
	e, err := newEngine(s, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // longer than the Engine repeats an undo
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}

// NewLocker returns a Locker of this process, for a program without a [testing.TB]. Its errors are
// those of wrong options. Each Locker needs a Process of its own.
func (p *Process) NewLocker(opts ...locker.Option) (*locker.Engine, error) { return newEngine(p, opts) }

func newEngine(s store.Store, opts []locker.Option) (*locker.Engine, error) {
	e, err := store.NewEngine(s, opts)
	if err != nil {
		return nil, err
	}
	return e.(*locker.Engine), nil
}
