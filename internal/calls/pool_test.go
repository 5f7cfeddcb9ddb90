package calls

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/internal/store"
)

// begin begins a step that answers after delay. The fence in the answer is fence.
func begin(p *Pool, delay time.Duration, fence int) *Future {
	f, ok := p.Future(nil)
	if ok {
		p.Do(func() {
			if delay > 0 {
				time.Sleep(delay) //nolint:forbidigo // in a bubble
			}
			f.Deliver(store.Grant{State: store.Granted, Fence: uint64(fence)}, nil)
		})
	}
	return f
}

func goroutines(p *Pool) int {
	p.live.mu.Lock()
	defer p.live.mu.Unlock()
	return p.live.n
}

func TestPool(t *testing.T) {
	bubble := func(name string, delay time.Duration, test func(t *testing.T, p *Pool, ask func(n int))) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := new(Pool)
				test(t, p, func(n int) {
					t.Helper()
					f := begin(p, delay, n)
					<-f.Answered()
					if g, err := f.Answer(); err != nil || g.Fence != uint64(n) {
						t.Errorf("the answer to step %d is %d, %v", n, g.Fence, err)
					}
					synctest.Wait() // now the goroutine has ended
				})
				if err := p.Stop(context.Background()); err != nil || goroutines(p) != 0 {
					t.Errorf("%d goroutines are left, %v", goroutines(p), err)
				}
			})
		})
	}

	bubble("a step that hangs holds up no other", time.Second, func(t *testing.T, p *Pool, ask func(int)) {
		begin(p, time.Minute, 1).Abandon()
		ask(2)
		ask(3)
		if goroutines(p) != 1 {
			t.Errorf("%d goroutines", goroutines(p))
		}
	})

	bubble("an answer that comes as its step is abandoned reaches nobody else", time.Second, func(t *testing.T, p *Pool, ask func(int)) {
		for n := range 1000 {
			f := begin(p, time.Second, n)
			if n%2 == 0 {
				f.Answered()
			}
			time.Sleep(time.Second) //nolint:forbidigo // costs no time in a bubble; the answer comes at the end of this pause
			f.Abandon()
			ask(n + 1)
		}
		if n := p.hanging.Load(); n != 0 {
			t.Errorf("%d steps count as abandoned", n)
		}
	})

	bubble("steps after the end are made", 0, func(t *testing.T, p *Pool, ask func(int)) {
		ask(1)
		if err := p.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		ask(2)
		if goroutines(p) != 0 {
			t.Errorf("%d goroutines stay", goroutines(p))
		}
	})

	bubble("the end waits for what is under way", 0, func(t *testing.T, p *Pool, _ func(int)) {
		begin(p, time.Minute, 1).Abandon()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err = %v", err)
		}
	})

	bubble("too many abandoned steps that hang refuse the next", 0, func(t *testing.T, p *Pool, ask func(int)) {
		for n := range mostHanging {
			begin(p, time.Minute, n).Abandon()
		}
		f := begin(p, 0, 1)
		<-f.Answered()
		if _, err := f.Answer(); !errors.Is(err, errHanging) {
			t.Errorf("err = %v", err)
		}
		time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
		synctest.Wait()         // the steps end at this very moment
		ask(2)
	})

	t.Run("who asks and who goes do not meet", func(t *testing.T) { // this case is for the race detector
		t.Parallel()
		p := new(Pool)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for n := range 2000 {
					f := begin(p, 0, n)
					if n%3 == 0 {
						f.Abandon()
						continue
					}
					<-f.Answered()
					g, err := f.Answer()
					if errors.Is(err, errHanging) { // too many steps were abandoned just before
						continue
					}
					if g.Fence != uint64(n) {
						t.Errorf("the answer to step %d is %d", n, g.Fence)
					}
				}
			})
		}
		wg.Wait()
		if err := p.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A function onAnswer gets one answer, also when two arrive.
func TestOnAnswerGetsOneAnswer(t *testing.T) {
	t.Parallel()
	n := 0
	f := Settled(store.Grant{State: store.Released}, nil, func(store.Grant, error) { n++ })
	f.Deliver(store.Grant{}, errNoAnswer)
	if n != 1 {
		t.Errorf("%d answers", n)
	}
}
