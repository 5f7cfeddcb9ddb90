package locker

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// slowStore answers after delay, with the Claim's Block as the fence.
type slowStore struct {
	Store
	delay time.Duration
}

func (s slowStore) Acquire(_ context.Context, c Claim) (Grant, error) {
	if s.delay > 0 {
		time.Sleep(s.delay) //nolint:forbidigo // in a bubble
	}
	return Grant{State: Granted, Fence: uint64(c.Block)}, nil
}

func goroutines(cs *callers) int {
	cs.live.mu.Lock()
	defer cs.live.mu.Unlock()
	return cs.live.n
}

func TestCallers(t *testing.T) {
	ask := func(t *testing.T, cs *callers, n int) {
		t.Helper()
		call := cs.begin(t.Context(), Store.Acquire, Claim{Block: n})
		<-call.done
		if g, err := call.answer(); err != nil || g.Fence != uint64(n) {
			t.Errorf("the answer to call %d is %d, %v", n, g.Fence, err)
		}
	}
	bubble := func(name string, delay time.Duration, test func(t *testing.T, cs *callers)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cs := &callers{store: slowStore{delay: delay}}
				test(t, cs)
				if err := cs.stop(context.Background()); err != nil || goroutines(cs) != 0 {
					t.Errorf("%d goroutines are left, %v", goroutines(cs), err)
				}
			})
		})
	}

	bubble("one call after the other is made by one goroutine", time.Second, func(t *testing.T, cs *callers) {
		for n := range 100 {
			ask(t, cs, n)
		}
		if goroutines(cs) != 1 {
			t.Errorf("%d goroutines", goroutines(cs))
		}
	})

	bubble("a call that hangs holds up no other", time.Second, func(t *testing.T, cs *callers) {
		hangs := cs.begin(t.Context(), Store.Acquire, Claim{Block: 1})
		hangs.abandon()
		ask(t, cs, 2)
		ask(t, cs, 3)
		if goroutines(cs) != 2 {
			t.Errorf("%d goroutines", goroutines(cs))
		}
	})

	bubble("an answer that comes as its call is abandoned reaches nobody else", time.Second, func(t *testing.T, cs *callers) {
		for n := range 1000 {
			call := cs.begin(t.Context(), Store.Acquire, Claim{Block: n})
			time.Sleep(time.Second) //nolint:forbidigo // in a bubble; the answer comes now
			call.abandon()
			ask(t, cs, n+1)
		}
	})

	bubble("callers that nobody needs end", 0, func(t *testing.T, cs *callers) {
		var all []*caller
		for range 100 {
			all = append(all, cs.begin(t.Context(), Store.Acquire, Claim{}))
		}
		for _, c := range all {
			<-c.done
			_, _ = c.answer()
		}
		for range 10 { // one of them stays in use
			time.Sleep(callerIdle / 4) //nolint:forbidigo // in a bubble
			ask(t, cs, 1)
		}
		synctest.Wait()
		if goroutines(cs) != 1 {
			t.Errorf("%d goroutines after a while", goroutines(cs))
		}
		time.Sleep(3 * callerIdle) //nolint:forbidigo // in a bubble
		synctest.Wait()
		if goroutines(cs) != 0 {
			t.Errorf("%d goroutines at the end", goroutines(cs))
		}
		ask(t, cs, 1)
	})

	bubble("calls after the end are made", 0, func(t *testing.T, cs *callers) {
		ask(t, cs, 1)
		if err := cs.stop(t.Context()); err != nil {
			t.Error(err)
		}
		ask(t, cs, 2)
		synctest.Wait()
		if goroutines(cs) != 0 {
			t.Errorf("%d goroutines stay", goroutines(cs))
		}
	})

	bubble("the end waits for what is under way", time.Minute, func(t *testing.T, cs *callers) {
		cs.begin(t.Context(), Store.Acquire, Claim{}).abandon()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := cs.stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err = %v", err)
		}
	})

	t.Run("who asks and who goes do not meet", func(t *testing.T) { // for the race detector
		t.Parallel()
		cs := &callers{store: slowStore{}}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for n := range 2000 {
					if call := cs.begin(t.Context(), Store.Acquire, Claim{Block: n}); n%3 == 0 {
						call.abandon()
					} else {
						<-call.done
						if g, _ := call.answer(); g.Fence != uint64(n) {
							t.Errorf("the answer to call %d is %d", n, g.Fence)
						}
					}
				}
			})
		}
		wg.Wait()
		if err := cs.stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// What a call costs above the call itself. Without allocations: go test -bench Callers -benchmem.
func BenchmarkCallers(b *testing.B) {
	cs := &callers{store: slowStore{}}
	over := make(chan struct{})
	b.ReportAllocs()
	for b.Loop() {
		call := cs.begin(b.Context(), Store.Acquire, Claim{})
		select {
		case <-call.done:
			if _, err := call.answer(); err != nil {
				b.Fatal(err)
			}
		case <-over:
		}
	}
	if err := cs.stop(b.Context()); err != nil {
		b.Fatal(err)
	}
}
