package lockertest

import (
	"context"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// NewLocker returns an Engine over s that is closed when the test ends, which then fails if something is still under
// way after two minutes. In a testing/synctest bubble call it, and make s, inside the bubble. A second Locker over the same
// [Memory] gets a [Process] of its own.
func NewLocker(t testing.TB, s locker.Store, opts ...locker.Option) *locker.Engine {
	t.Helper()
	if m, ok := s.(*Memory); ok && m.taken() {
		s = m.NewProcess()
	}
	e, err := locker.New(s, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // longer than any undo is repeated
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return e
}
