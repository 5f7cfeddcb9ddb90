package calls

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker/store"
)

// slowStore is a Store that answers after delay. The fence in its answer is the claim's
// FenceCount.
type slowStore struct {
	store.Store
	delay time.Duration
}

func (s slowStore) Acquire(_ context.Context, c store.Claim) (store.Grant, error) {
	if s.delay > 0 {
		time.Sleep(s.delay) //nolint:forbidigo // in a bubble
	}
	return store.Grant{State: store.Granted, Fence: uint64(c.FenceCount)}, nil
}

func goroutines(cs *Pool) int {
	cs.live.mu.Lock()
	defer cs.live.mu.Unlock()
	return cs.live.n
}

func TestCallers(t *testing.T) {
	ask := func(t *testing.T, cs *Pool, n int) {
		t.Helper()
		call := cs.Begin(t.Context(), store.Store.Acquire, store.Claim{FenceCount: n})
		<-call.Answered()
		if g, err := call.Answer(); err != nil || g.Fence != uint64(n) {
			t.Errorf("the answer to call %d is %d, %v", n, g.Fence, err)
		}
	}
	bubble := func(name string, delay time.Duration, test func(t *testing.T, cs *Pool)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cs := &Pool{Store: slowStore{delay: delay}}
				test(t, cs)
				if err := cs.Stop(context.Background()); err != nil || goroutines(cs) != 0 {
					t.Errorf("%d goroutines are left, %v", goroutines(cs), err)
				}
			})
		})
	}

	bubble("one call after the other is made by one goroutine", time.Second, func(t *testing.T, cs *Pool) {
		for n := range 100 {
			ask(t, cs, n)
		}
		if goroutines(cs) != 1 {
			t.Errorf("%d goroutines", goroutines(cs))
		}
	})

	bubble("a call that hangs holds up no other", time.Second, func(t *testing.T, cs *Pool) {
		hangs := cs.Begin(t.Context(), store.Store.Acquire, store.Claim{FenceCount: 1})
		hangs.Abandon()
		ask(t, cs, 2)
		ask(t, cs, 3)
		if goroutines(cs) != 2 {
			t.Errorf("%d goroutines", goroutines(cs))
		}
	})

	bubble("an answer that comes as its call is abandoned reaches nobody else", time.Second, func(t *testing.T, cs *Pool) {
		for n := range 1000 {
			call := cs.Begin(t.Context(), store.Store.Acquire, store.Claim{FenceCount: n})
			time.Sleep(time.Second) //nolint:forbidigo // costs no time in a bubble; the answer comes at the end of this pause
			call.Abandon()
			ask(t, cs, n+1)
		}
	})

	bubble("callers that nobody needs end", 0, func(t *testing.T, cs *Pool) {
		var all []Question
		for range 100 {
			all = append(all, cs.Begin(t.Context(), store.Store.Acquire, store.Claim{}))
		}
		for _, c := range all {
			<-c.Answered()
			_, _ = c.Answer()
		}
		for range 10 { // one worker stays in use
			time.Sleep(workerIdle / 4) //nolint:forbidigo // in a bubble
			ask(t, cs, 1)
		}
		synctest.Wait()
		if goroutines(cs) != 1 {
			t.Errorf("%d goroutines after a while", goroutines(cs))
		}
		time.Sleep(3 * workerIdle) //nolint:forbidigo // in a bubble
		synctest.Wait()
		if goroutines(cs) != 0 {
			t.Errorf("%d goroutines at the end", goroutines(cs))
		}
		ask(t, cs, 1)
	})

	bubble("calls after the end are made", 0, func(t *testing.T, cs *Pool) {
		ask(t, cs, 1)
		if err := cs.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		ask(t, cs, 2)
		synctest.Wait()
		if goroutines(cs) != 0 {
			t.Errorf("%d goroutines stay", goroutines(cs))
		}
	})

	bubble("the end waits for what is under way", time.Minute, func(t *testing.T, cs *Pool) {
		cs.Begin(t.Context(), store.Store.Acquire, store.Claim{}).Abandon()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := cs.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err = %v", err)
		}
	})

	t.Run("who asks and who goes do not meet", func(t *testing.T) { // this case is for the race detector
		t.Parallel()
		cs := &Pool{Store: slowStore{}}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for n := range 2000 {
					if call := cs.Begin(t.Context(), store.Store.Acquire, store.Claim{FenceCount: n}); n%3 == 0 {
						call.Abandon()
					} else {
						<-call.Answered()
						g, err := call.Answer()
						if errors.Is(err, errHanging) { // too many calls were abandoned just before
							continue
						}
						if g.Fence != uint64(n) {
							t.Errorf("the answer to call %d is %d", n, g.Fence)
						}
					}
				}
			})
		}
		wg.Wait()
		if err := cs.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// BenchmarkCallers measures what a call costs in addition to the Store's own work. A call makes no
// allocations, as this command shows: go test -bench Callers -benchmem.
func BenchmarkCallers(b *testing.B) {
	cs := &Pool{Store: slowStore{}}
	over := make(chan struct{})
	b.ReportAllocs()
	for b.Loop() {
		call := cs.Begin(b.Context(), store.Store.Acquire, store.Claim{})
		select {
		case <-call.Answered():
			if _, err := call.Answer(); err != nil {
				b.Fatal(err)
			}
		case <-over:
		}
	}
	if err := cs.Stop(b.Context()); err != nil {
		b.Fatal(err)
	}
}
