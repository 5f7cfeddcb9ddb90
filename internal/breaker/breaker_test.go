package breaker_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/breaker"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// errOutage is the error of a Locker whose server does not answer.
var errOutage = &locker.Error{Op: locker.OpAcquire, Err: locker.ErrUnavailable}

// server is a Locker whose server can stop to answer.
type server struct {
	locker.Locker
	down   atomic.Bool
	slow   time.Duration // how long Inspect takes
	probes atomic.Int32
}

func (s *server) Inspect(context.Context, string) (locker.Info, error) {
	s.probes.Add(1)
	<-time.After(s.slow)
	if s.down.Load() {
		return locker.Info{}, locker.ErrUnavailable
	}
	return locker.Info{}, nil
}

// stop makes the server unavailable, and lets one request notice it.
func (s *server) stop(t *testing.T, b *breaker.Breaker) {
	t.Helper()
	s.down.Store(true)
	if err := refused(t, b, errOutage); !errors.Is(err, locker.ErrUnavailable) || !b.Open() {
		t.Fatalf("%v, open: %v", err, b.Open())
	}
}

// refused sends a request that does not get its lock, because of err.
func refused(t *testing.T, b *breaker.Breaker, err error) error {
	t.Helper()
	return b.Try(t.Context(), "order:42", func(context.Context, func()) error { return err })
}

// The probes need no requests. A breaker that only requests can close would let the first requests
// after a quiet night run without a lock.
func TestTheEndOfAnOutageIsNoticedWithoutRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		b := breaker.New(s)
		if b.Open() {
			t.Fatal("a new Breaker is open")
		}
		s.stop(t, b)
		for range 100 { // the requests of an outage of 10 s
			if began := time.Now(); !b.Open() || time.Since(began) != 0 {
				t.Fatal("a request has asked during the outage, or waited for a probe")
			}
			<-time.After(100 * time.Millisecond)
		}
		if n := s.probes.Load(); n < 9 || n > 10 {
			t.Errorf("%d probes in 10 s", n)
		}
		s.down.Store(false)
		<-time.After(1500 * time.Millisecond) // the last probe is after a whole second, at most
		probes := s.probes.Load()
		<-time.After(time.Hour)
		if n := s.probes.Load(); n != probes {
			t.Errorf("%d probes of a server that has answered", n-probes)
		}
		if b.Open() {
			t.Error("the first request after the outage does not ask")
		}
	})
}

// A client may send a deadline that is shorter than a round trip.
func TestADeadlineThatNoServerMeetsLetsAProbeDecide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		b := breaker.New(s)
		ctx, end := context.WithCancel(t.Context())
		end()
		for _, down := range []bool{false, true} {
			s.down.Store(down)
			_ = b.Try(ctx, "order:42", func(context.Context, func()) error { return errOutage })
			early := b.Open()
			if <-time.After(1500 * time.Millisecond); early || b.Open() != down {
				t.Errorf("down: %v, open: %v, %v", down, early, b.Open())
			}
		}
	})
}

// A store of responses may be on a server of its own. Its outage is none of the lock server, so the
// requests without a response keep their locks.
func TestAnOutageOfAStoreOfResponsesOpensNothing(t *testing.T) {
	b := breaker.New(&server{})
	if err := refused(t, b, fmt.Errorf("%w: the store does not answer", locker.ErrUnavailable)); !errors.Is(err, locker.ErrUnavailable) || b.Open() {
		t.Errorf("%v, open: %v", err, b.Open())
	}
}

// Requests that were under way when an outage began may get an answer, and other requests none: for
// example while one master of a Cluster is down.
func TestAServerIsProbedOnceASecondHoweverOftenItsOutageIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		b := breaker.New(s)
		for range 5 {
			s.stop(t, b)
			_ = refused(t, b, locker.ErrBusy) // an answer
		}
		s.stop(t, b)
		<-time.After(10500 * time.Millisecond)
		if n := s.probes.Load(); n != 10 {
			t.Errorf("%d probes in 10.5 s", n)
		}
		s.down.Store(false)
		<-time.After(2 * time.Second)
	})
}

// After Close, the client may be closed too, and then every call would fail as in an outage.
func TestTheProbesOfALockerEndWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lockertest.NewMemory()
		l := lockertest.NewLocker(t, store)
		store.Fail(locker.OpInspect, errors.New("the client is closed"))
		b := breaker.New(l)
		_ = refused(t, b, errOutage)
		<-time.After(3500 * time.Millisecond)
		if n := store.Calls(locker.OpInspect); n != 3 {
			t.Errorf("%d probes in 3.5 s", n)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		<-time.After(time.Hour)
		if n := store.Calls(locker.OpInspect); n != 3 {
			t.Errorf("%d probes after Close", n-3)
		}
	})
}

// A probe only reads, so the first request after it asks for all others.
func TestOneRequestAsksForAllOthers(t *testing.T) {
	lockers := func(err error) error { return &locker.Error{Op: locker.OpAcquire, Err: err} }
	for name, tc := range map[string]struct {
		err    error
		closed bool
	}{
		"busy":                                 {lockers(locker.ErrBusy), true},
		"done":                                 {lockers(locker.ErrDone), true},
		"a stored response, which asks nobody": {locker.ErrDone, false},
		"the client left":                      {context.Canceled, false},
		"no server":                            {lockers(locker.ErrUnavailable), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{}
				b := breaker.New(s)
				s.stop(t, b)
				s.down.Store(false)
				<-time.After(time.Minute)
				if b.Open() {
					t.Fatal("no request asks")
				}
				if !b.Open() {
					t.Error("two requests ask at once")
				}
				_ = refused(t, b, tc.err)
				if b.Open() == tc.closed {
					t.Errorf("open: %v", !tc.closed)
				}
				<-time.After(time.Minute)
				if b.Open() {
					t.Error("no further request asks later")
				}
			})
		})
	}
}

func TestAGrantEndsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		b := breaker.New(s)
		s.stop(t, b)
		err := b.Try(t.Context(), "order:42", func(ctx context.Context, granted func()) error {
			granted()
			if b.Open() {
				t.Error("open after a grant")
			}
			<-time.After(time.Minute) // the server is down, and only the lease may end the work
			return ctx.Err()
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A request in a queue learns nothing of a server that has stopped to answer, so it looks once.
func TestAWaitEndsWithItsServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		b := breaker.New(s)
		wait := func(ctx context.Context, _ func()) error {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(time.Minute):
				return locker.ErrBusy
			}
		}
		if err := b.Try(t.Context(), "order:42", wait); err != locker.ErrBusy {
			t.Errorf("while the server answers: %v", err)
		}
		s.down.Store(true)
		began := time.Now()
		err := b.Try(t.Context(), "order:42", wait)
		if d := time.Since(began); !b.Permits(t.Context(), err) || d != time.Second || !b.Open() {
			t.Errorf("%v after %v", err, d)
		}
		ctx, leave := context.WithCancel(t.Context())
		leave()
		if b.Permits(ctx, err) {
			t.Error("a request whose client has left may run")
		}
	})
}

// The probe of a wait is under way when the lock is granted. Then only the end of the lease may end
// the work.
func TestAProbeDoesNotEndWorkUnderTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{slow: 200 * time.Millisecond}
		s.down.Store(true)
		err := breaker.New(s).Try(t.Context(), "order:42", func(ctx context.Context, granted func()) error {
			<-time.After(1100 * time.Millisecond)
			granted()
			<-time.After(time.Minute)
			return ctx.Err()
		})
		if err != nil || s.probes.Load() != 1 {
			t.Errorf("%v after %d probes", err, s.probes.Load())
		}
	})
}

func TestWithoutABreakerNoRequestRunsWithoutALock(t *testing.T) {
	var b *breaker.Breaker
	err := b.Try(t.Context(), "order:42", func(_ context.Context, granted func()) error {
		granted()
		return locker.ErrUnavailable
	})
	if err != locker.ErrUnavailable || b.Open() || b.Permits(t.Context(), err) {
		t.Errorf("%v, %v", err, b.Open())
	}
}
