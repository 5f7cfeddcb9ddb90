package recipes_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/examples/recipes"
	"github.com/latchkit/latchkit/locker"
)

// permitsOf returns a semaphore of five permits for a pod.
func permitsOf(t *testing.T, p pod) locker.Locker {
	t.Helper()
	permits, err := locker.NewSemaphore(p.redis, 5, locker.WithPrefix(t.Name()+":"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = permits.Close(context.Background()) })
	return permits
}

func TestAPartnerGetsFiveCallsAtATime(t *testing.T) {
	t.Parallel()
	pods := newPods(t)
	permits := map[*locker.Engine]locker.Locker{pods[0].l: permitsOf(t, pods[0]), pods[1].l: permitsOf(t, pods[1])}
	var inside, most atomic.Int32
	together(pods, 10, func(p pod) {
		err := recipes.AtATime(t.Context(), permits[p.l], func(context.Context) error {
			n := inside.Add(1)
			defer inside.Add(-1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			<-time.After(20 * time.Millisecond)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	if n := most.Load(); n < 2 || n > 5 {
		t.Errorf("at most %d calls at a time", n)
	}
}

// Of twelve calls, five begin in each second. So the last two begin after two seconds.
func TestAPartnerGetsFiveCallsASecond(t *testing.T) {
	t.Parallel()
	pods := newPods(t)
	permits := map[*locker.Engine]locker.Locker{pods[0].l: permitsOf(t, pods[0]), pods[1].l: permitsOf(t, pods[1])}
	begin := time.Now()
	var calls, early atomic.Int32
	together(pods, 6, func(p pod) {
		err := recipes.ASecond(t.Context(), permits[p.l], func(context.Context) error {
			calls.Add(1)
			if time.Since(begin) < 2*time.Second {
				early.Add(1)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	if calls.Load() != 12 || early.Load() > 10 {
		t.Errorf("%d calls, %d of them in the first two seconds", calls.Load(), early.Load())
	}
}
