package locker_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// panicky is an Observer that panics in all its methods, or in only one of them.
type panicky struct {
	only   string // the method that panics; "": all methods
	panics *atomic.Int32
}

func (p panicky) panic(method string) {
	if p.only == "" || p.only == method {
		p.panics.Add(1)
		panic(method)
	}
}

func (p panicky) Begin(ctx context.Context, op locker.Op, _ locker.Rule) (context.Context, func(locker.Outcome)) {
	p.panic("begin " + string(op))
	return ctx, func(locker.Outcome) { p.panic("end " + string(op)) }
}

func (p panicky) Waiting(context.Context, locker.Rule, locker.WaitEvent) func() {
	p.panic("waiting")
	return func() { p.panic("waited") }
}

func (p panicky) Renewed(context.Context, locker.Rule, locker.RenewalEvent) { p.panic("renewed") }
func (p panicky) Request(context.Context, locker.RequestEvent)              { p.panic("request") }
func (p panicky) Warn(locker.Warning)                                       { p.panic("warn") }

func (p panicky) Traceparent(context.Context) string {
	p.panic("traceparent")
	return ""
}

// When an Observer panicked at the end of an acquire, the lease used to be renewed although it had
// no holder. When an Observer panicked at a loss, the process used to end.
func TestAnObserverThatPanicsLeavesTheLocksAsTheyAre(t *testing.T) {
	quietly(t)
	for _, method := range []string{
		"", "begin acquire", "end acquire", "begin hold", "end hold", "begin release", "end release", "begin extend", "end extend",
		"begin revoke", "end revoke", "waiting", "waited", "renewed", "request", "traceparent",
	} {
		t.Run(method, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				panics := new(atomic.Int32)
				rule := locker.Rule{Key: "a", TTL: time.Second}
				l := lockertest.NewLocker(t, store, locker.WithObserver(panicky{method, panics}))
				first := acquire(t, l, rule)
				if err := first.Extend(t.Context(), time.Second); err != nil {
					t.Error(err)
				}
				next, local := make(chan *locker.Lease, 1), make(chan *locker.Lease, 1)
				go func() { next <- acquire(t, l, rule) }()
				synctest.Wait()
				go func() { local <- acquire(t, l, rule) }()
				<-time.After(5 * time.Second) // meanwhile the lease is renewed
				release(t, first)
				release(t, <-next) // released at once, so that the last caller gets the lease inside the process
				last := <-local
				if err := l.Revoke(t.Context(), "a", last.Fence(), "drill"); err != nil {
					t.Error(err)
				}
				<-last.Context().Done()
				if err := last.Release(t.Context()); !errors.Is(err, locker.ErrRevoked) {
					t.Errorf("the release of a revoked lease: %v", err)
				}
				l.ObserveRequest(t.Context(), locker.RequestEvent{})
				if err := locker.RunAll(t.Context(), l, []locker.Rule{rule, {Key: "b"}}, func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
				<-time.After(time.Minute)
				nothingLeft(t, store)
				if panics.Load() == 0 {
					t.Error("positive control: nothing panicked")
				}
			})
		})
	}
}

// quietly discards the log of the test.
func quietly(t *testing.T) {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { slog.SetDefault(before) })
}
