package breaker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/breaker"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// server is a Locker whose server can be made unreachable. While the server is unreachable, each
// call takes 5 s.
type server struct {
	locker.Locker
	unreachable atomic.Bool
	asks        atomic.Int32
}

func (s *server) Acquire(ctx context.Context, r locker.Rule) (*locker.Lease, error) {
	s.asks.Add(1)
	if !s.unreachable.Load() {
		return s.Locker.Acquire(ctx, r)
	}
	select {
	case <-time.After(5 * time.Second):
	case <-ctx.Done():
	}
	return nil, locker.ErrUnavailable
}

// inspectServer is a server that has Inspect, so that a probe needs no lock.
type inspectServer struct{ *server }

func (i inspectServer) Inspect(context.Context, string) (locker.Info, error) {
	i.asks.Add(1)
	if i.unreachable.Load() {
		return locker.Info{}, locker.ErrUnavailable
	}
	return locker.Info{}, nil
}

func (inspectServer) Acquire(context.Context, locker.Rule) (*locker.Lease, error) {
	panic("a probe must take nothing where Inspect does")
}

func TestAnOutageIsNoticedOnceAndItsEndByAProbe(t *testing.T) {
	for name, wrap := range map[string]func(*server) locker.Locker{
		"by Acquire": func(s *server) locker.Locker { return s },
		"by Inspect": func(s *server) locker.Locker { return inspectServer{s} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := lockertest.NewMemory()
				s := &server{Locker: lockertest.NewLocker(t, store)}
				b := breaker.New(wrap(s))
				if b.Open() {
					t.Fatal("a new Breaker is open")
				}
				s.unreachable.Store(true)
				b.Failed("order:42")
				for range 100 { // these requests come during an outage of 10 s
					began := time.Now()
					if !b.Open() {
						t.Fatal("the Breaker closed during the outage")
					}
					if time.Since(began) != 0 {
						t.Fatal("a request waited for a probe")
					}
					time.Sleep(100 * time.Millisecond) //nolint:forbidigo // virtual time
				}
				if n := s.asks.Load(); n < 3 || n > 10 {
					t.Errorf("%d probes in 10 s", n)
				}
				s.unreachable.Store(false)
				for range 50 {
					time.Sleep(100 * time.Millisecond) //nolint:forbidigo // virtual time
					b.Open()
				}
				if b.Open() {
					t.Error("the Breaker is open 5 s after the outage")
				}
				if n := store.Len(); n != 0 {
					t.Errorf("a probe left %d keys locked", n)
				}
			})
		})
	}
}
