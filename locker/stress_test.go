package locker_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

var stressFor = flag.Duration("stress", 3*time.Second, "how long Engines are stressed")

// stress makes many callers take a few keys, with leases so short that many of them are lost.
type stress struct {
	t    *testing.T
	keys int

	mu      sync.Mutex
	history history

	granted, cancelled, busy, losses atomic.Int64
}

// rule returns a Rule of a random kind.
func (s *stress) rule() locker.Rule {
	r := locker.Rule{Key: fmt.Sprint("stress:", rand.N(s.keys)), TTL: time.Duration(50+100*rand.N(3)) * time.Millisecond}
	switch rand.N(10) {
	case 0:
		r.Wait = time.Duration(1+rand.N(50)) * time.Millisecond
	case 1:
		r.Wait = locker.NoWait
	case 2:
		r.KeepFor = time.Duration(1+rand.N(5)) * time.Millisecond
	case 3:
		r.EndAfter = r.TTL
	case 4:
		r.EndAfter = 10 * time.Millisecond
	}
	return r
}

// visit tries to take a key. It records until when the caller could rely on the key: until the end
// of the lease, or until the caller's release if the release was earlier.
func (s *stress) visit(name string, l *locker.Engine) {
	rule := s.rule()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	if rand.N(4) == 0 {
		defer time.AfterFunc(rand.N(20*time.Millisecond), cancel).Stop()
	}
	asked := time.Now()
	lease, err := l.Acquire(ctx, rule)
	got := time.Now()
	switch {
	case err == nil:
		s.granted.Add(1)
	case errors.Is(err, context.Canceled):
		s.cancelled.Add(1)
	case errors.Is(err, locker.ErrBusy):
		s.busy.Add(1)
	case errors.Is(err, locker.ErrClosed):
	case errors.Is(err, locker.ErrUnavailable) && (rule.Wait > 0 || got.Sub(asked) >= 30*time.Millisecond):
		// On a slow machine, the server may answer too late.
	default:
		s.t.Errorf("%s: %+v: %v", name, rule, err)
	}
	if err != nil {
		return
	}
	switch rand.N(8) {
	case 0:
		<-time.After(rand.N(30 * time.Millisecond))
	case 1:
		_ = lease.Extend(ctx, 20*time.Millisecond+rand.N(200*time.Millisecond))
	case 2, 3:
		<-time.After(rand.N(2 * time.Millisecond))
	}
	end := time.Now()
	if e := lease.Expires(); e.Before(end) {
		end = e
	}
	if err := lease.Release(s.t.Context()); errors.Is(err, locker.ErrLost) || errors.Is(err, locker.ErrExpired) {
		s.losses.Add(1)
	} else if err != nil && !errors.Is(err, locker.ErrClosed) {
		s.t.Errorf("%s: release of %+v: %v", name, rule, err)
	}
	if !end.After(got) {
		return // the lease had ended before the caller could use it
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = append(s.history, section{
		Worker: name, Key: rule.Key, Fence: lease.Fence(), Asked: asked.UnixNano(), Start: got.UnixNano(), End: end.UnixNano(),
	})
}

// Several Engines of different kinds use short leases. Callers give up at any moment, and Engines
// are closed meanwhile. No two callers hold a key at the same time, fences grow, no caller waits
// for long, and nothing is left.
func TestNoTwoHoldAKeyUnderStress(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := &stress{t: t, keys: 3}
	kinds := [][]locker.SingleOption{
		nil, {locker.WithHandoffs(3)}, {locker.WithFair()}, {locker.WithAdaptiveTTL(50*time.Millisecond, 300*time.Millisecond)},
	}
	var engines [4]atomic.Pointer[locker.Engine]
	var clients [len(engines)]*redis.Client
	renew := func(i int) *locker.Engine {
		l, err := locker.New(clients[i], kinds[i]...)
		if err != nil {
			t.Error(err)
		}
		return engines[i].Swap(l)
	}
	stop := func(l *locker.Engine) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	for i := range engines {
		clients[i] = server.Client(t, func(o *redis.Options) { o.PoolSize = 40 })
		renew(i)
	}
	over := make(chan struct{})
	time.AfterFunc(*stressFor, func() { close(over) })
	going := func() bool {
		select {
		case <-over:
			return false
		default:
			return true
		}
	}
	var working sync.WaitGroup
	for i := range engines {
		for n := range 8 {
			working.Go(func() {
				for going() {
					s.visit(fmt.Sprintf("engine %d, worker %d", i, n), engines[i].Load())
				}
			})
		}
	}
	closed := 0
	working.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(300*time.Millisecond + rand.N(400*time.Millisecond)):
				stop(renew(closed % len(engines)))
				closed++
			}
		}
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		working.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(*stressFor + stuckAfter):
		t.Fatalf("a caller is stuck:\n%s", strings.Join(goroutines(), "\n\n"))
	}
	for i := range engines {
		stop(engines[i].Load())
	}
	s.history.check(t)
	longest := s.history.longestWait()
	t.Logf("%d granted, %d cancelled, %d busy, %d lost, %d closed; the longest wait was %v",
		s.granted.Load(), s.cancelled.Load(), s.busy.Load(), s.losses.Load(), closed, longest)
	if longest > 8*time.Second {
		t.Errorf("a caller waited for %v", longest)
	}
	for what, n := range map[string]int64{
		"grants": s.granted.Load() / 100, "cancels": s.cancelled.Load(), "busy": s.busy.Load(), "lost": s.losses.Load(), "closes": int64(closed),
	} {
		if n == 0 {
			t.Errorf("positive control: no or too few %s", what)
		}
	}
}
