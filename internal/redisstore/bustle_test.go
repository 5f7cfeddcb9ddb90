package redisstore_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// bustle runs callers in several processes. The callers acquire a few keys again and again without
// a pause.
type bustle struct {
	*testing.T
	stop context.CancelFunc
	work sync.WaitGroup
	done []atomic.Int64 // for each worker, how many critical sections it has finished

	mu     sync.Mutex
	grants map[string][]uint64 // fences by key; in the order of the grants if a key has one holder at a time
	errs   []error
	limit  int // how many units a key has: 1 without a semaphore
	mixed  int // how many critical sections held more than one unit while others held units of the key
}

// startBustle starts n workers for each pair of a Locker and a key, and returns the bustle of these
// workers. If the rule has a Limit, every second worker takes two units.
func startBustle(t *testing.T, ls []*locker.Engine, keys []string, n int, rule locker.Rule) *bustle {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c := &bustle{T: t, stop: stop, grants: make(map[string][]uint64), done: make([]atomic.Int64, len(ls)*len(keys)*n), limit: max(1, rule.Limit)}
	inside := make([]atomic.Int32, len(keys))
	worker := 0
	for _, l := range ls {
		for k, key := range keys {
			for range n {
				rule, done := rule, &c.done[worker]
				rule.Key = key
				if rule.Limit > 1 {
					rule.Weight = 1 + worker%2
				}
				worker++
				c.work.Go(func() {
					for ctx.Err() == nil {
						if c.section(ctx, l, rule, &inside[k]) {
							done.Add(1)
						}
					}
				})
			}
		}
	}
	t.Cleanup(c.end)
	return c
}

func (c *bustle) section(ctx context.Context, l *locker.Engine, rule locker.Rule, inside *atomic.Int32) bool {
	lease, err := l.Acquire(ctx, rule)
	if err != nil {
		if ctx.Err() == nil {
			c.note(func() { c.errs = append(c.errs, err) })
		}
		return false
	}
	units := int32(max(1, rule.Weight))
	if inside.Add(units) > int32(c.limit) {
		c.note(func() { c.mixed++ })
	}
	c.note(func() { c.grants[rule.Key] = append(c.grants[rule.Key], lease.Fence()) })
	time.Sleep(time.Millisecond) //nolint:forbidigo // the work of the critical section, during which other callers arrive
	inside.Add(-units)
	if err := lease.Release(context.Background()); err != nil {
		c.note(func() { c.errs = append(c.errs, err) })
		return false
	}
	return true
}

func (c *bustle) note(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

// awaitSections returns when each worker has finished a critical section that began after the
// call of awaitSections.
func (c *bustle) awaitSections() {
	c.Helper()
	var before []int64
	for i := range c.done {
		before = append(before, c.done[i].Load())
	}
	for i := range c.done {
		eventually(c.T, fmt.Sprintf("worker %d goes on", i), func() bool { return c.done[i].Load() >= before[i]+2 })
	}
}

func (c *bustle) end() {
	c.stop()
	c.work.Wait()
}

// checkUnharmed ends the bustle, and checks that no fault has disturbed a critical section.
func (c *bustle) checkUnharmed() {
	c.Helper()
	c.end()
	for _, err := range c.errs {
		c.Error(err)
	}
	if c.mixed > 0 {
		c.Errorf("%d sections held more than %d units together with others", c.mixed, c.limit)
	}
	for key, fences := range c.grants {
		if c.limit > 1 { // several holders have units of one key at once, so the fences are noted out of order
			slices.Sort(fences)
		}
		if !slices.IsSorted(fences) || len(slices.Compact(slices.Clone(fences))) != len(fences) {
			c.Errorf("fences of %s do not grow: %v", key, fences)
		}
	}
}

// largestFences returns the largest fence of each key so far.
func (c *bustle) largestFences() map[string]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	most := make(map[string]uint64)
	for key, fences := range c.grants {
		most[key] = slices.Max(fences)
	}
	return most
}
