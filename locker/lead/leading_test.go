package lead

import (
	"context"
	"testing"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// After a process was stopped for longer than its lease, it runs again, and fn's context has
// not ended yet. But Leading checks the clock, and reports that the process does not lead.
func TestLeadingAsksTheClockAndNotTheContext(t *testing.T) {
	t.Parallel()
	e := lockertest.NewLocker(t, lockertest.NewMemory())
	l, err := New(e, locker.Rule{Key: "job"})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := e.Acquire(t.Context(), l.rule)
	if err != nil {
		t.Fatal(err)
	}
	l.term = &term{leader: l, lease: lease, ctx: context.Background(), shown: Term{Fence: lease.Fence()}} // the context of this term never ends
	if term, leading := l.Leading(); !leading || term.Fence != lease.Fence() {
		t.Errorf("%+v, %t", term, leading)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, leading := l.Leading(); leading {
		t.Error("it leads although its lease is over")
	}
}
