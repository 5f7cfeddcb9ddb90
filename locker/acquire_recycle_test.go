package locker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// TestAcquiresInUsedMemoryKeepApart runs readers and writers at the same time, and cancels some of
// them at random times. Each acquire reuses the memory of an earlier acquire. If the earlier
// acquire still used this memory, the later acquire would get its turn, its message or its
// rule.
func TestAcquiresInUsedMemoryKeepApart(t *testing.T) {
	client := redistest.Start(t).Client(t)
	l, err := locker.NewReadWrite(client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	var mu sync.Mutex
	writers, readers := make(map[string]int), make(map[string]int)
	enter := func(key string, shared bool, by int) {
		mu.Lock()
		defer mu.Unlock()
		if shared {
			readers[key] += by
		} else {
			writers[key] += by
		}
		if writers[key] > 1 || writers[key] > 0 && readers[key] > 0 {
			t.Errorf("%s has %d writers and %d readers", key, writers[key], readers[key])
		}
	}
	var work sync.WaitGroup
	for worker := range 32 {
		work.Go(func() {
			for i := range 150 {
				rule := locker.Rule{Key: fmt.Sprintf("k%d", rand.N(3)), Name: fmt.Sprintf("%d.%d", worker, i)}
				if rand.N(4) == 0 {
					rule.Mode = locker.Shared
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				if rand.N(3) == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), rand.N(3*time.Millisecond))
				}
				lease, err := l.Acquire(ctx, rule)
				switch {
				case err == nil:
					if lease.Key() != rule.Key || lease.Mode() != rule.Mode {
						t.Errorf("asked for %s in mode %v, got %v in mode %v", rule.Key, rule.Mode, lease, lease.Mode())
					}
					enter(rule.Key, rule.Mode == locker.Shared, 1)
					enter(rule.Key, rule.Mode == locker.Shared, -1)
					if err := lease.Release(t.Context()); err != nil {
						t.Error(err)
					}
				case !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, locker.ErrBusy):
					t.Error(err)
				}
				cancel()
			}
		})
	}
	work.Wait()
}
