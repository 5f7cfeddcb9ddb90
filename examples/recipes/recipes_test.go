package recipes_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"

	"github.com/latchkit/latchkit/examples/recipes"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

func TestMain(m *testing.M) { redistest.Main(proc.Main(m)) }

// pod is one instance of a service. It has its own client and its own Locker.
type pod struct {
	redis *redis.Client
	l     *locker.Engine
}

// newPods returns two instances on one Redis. No other test uses their keys.
func newPods(t *testing.T) [2]pod {
	t.Helper()
	server := redistest.Shared(t)
	var pods [2]pod
	for i := range pods {
		c := server.Client(t, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
		l, err := locker.New(c, locker.WithPrefix(t.Name()+":"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := l.Close(ctx); err != nil {
				t.Error(err)
			}
		})
		pods[i] = pod{c, l}
	}
	return pods
}

// together calls the function do n times on each pod at the same time, and returns when all
// calls have returned.
func together(pods [2]pod, n int, do func(p pod)) {
	var all sync.WaitGroup
	for _, p := range pods {
		for range n {
			all.Go(func() { do(p) })
		}
	}
	all.Wait()
}

// Two real schedulers, one for each pod, run the same job each second. The second scheduler is
// always 100 ms late.
func TestATickIsDoneOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	done := make(map[time.Time]int)
	asked := make(map[time.Time]int)
	for i, p := range newPods(t) {
		c := cron.New(cron.WithSeconds())
		_, err := c.AddFunc("* * * * * *", func() {
			at := time.Now().Truncate(time.Second)
			<-time.After(time.Duration(i) * 100 * time.Millisecond)
			mu.Lock()
			asked[at]++
			mu.Unlock()
			err := recipes.Tick(t.Context(), p.l, "report", at, func(context.Context) error {
				mu.Lock()
				defer mu.Unlock()
				done[at]++
				return nil
			})
			if err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		c.Start()
		defer func() { <-c.Stop().Done() }()
	}
	twice := func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, pods := range asked {
			if pods == 2 {
				n++
			}
		}
		return n
	}
	eventually(t, "three ticks have reached both pods", func() bool { return twice() >= 3 })
	mu.Lock()
	defer mu.Unlock()
	for at, n := range done {
		if n != 1 {
			t.Errorf("the tick of %v was done %d times", at, n)
		}
	}
}

func TestAFailedTickMayBeDoneByAnotherPod(t *testing.T) {
	t.Parallel()
	pods, at, fails := newPods(t), time.Now(), errors.New("no database")
	if err := recipes.Tick(t.Context(), pods[0].l, "report", at, func(context.Context) error { return fails }); !errors.Is(err, fails) {
		t.Fatal(err)
	}
	times := 0
	for range 2 {
		if err := recipes.Tick(t.Context(), pods[1].l, "report", at, func(context.Context) error { times++; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if times != 1 {
		t.Errorf("done %d times", times)
	}
}

func TestAnotherPodLeadsWhenTheLeaderStops(t *testing.T) {
	t.Parallel()
	pods := newPods(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var leads [2]atomic.Uint64 // the fences of the two leaders
	ended := make(chan error, 2)
	first, stopFirst := context.WithCancel(ctx)
	for i, ctx := range []context.Context{first, ctx} {
		go func() {
			ended <- recipes.Relay(ctx, pods[i].l, func(ctx context.Context, fence uint64) error {
				leads[i].Store(fence)
				select {
				case <-ctx.Done():
				case <-time.After(time.Millisecond):
				}
				return nil
			})
		}()
		if i == 0 {
			eventually(t, "the first pod leads", func() bool { return leads[0].Load() > 0 })
		}
	}
	stopFirst()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	eventually(t, "the second pod leads", func() bool { return leads[1].Load() > leads[0].Load() })
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAValueIsLoadedOnce(t *testing.T) {
	t.Parallel()
	var loads atomic.Int32
	together(newPods(t), 20, func(p pod) {
		c := recipes.Cache{Redis: p.redis, L: p.l, TTL: time.Minute}
		value, err := c.Get(t.Context(), "prices", func(context.Context) (string, error) {
			loads.Add(1)
			return "42", nil
		})
		if err != nil || value != "42" {
			t.Errorf("%q %v", value, err)
		}
	})
	if n := loads.Load(); n != 1 {
		t.Errorf("loaded %d times", n)
	}
	p, fails := newPods(t)[0], errors.New("no database")
	c := recipes.Cache{Redis: p.redis, L: p.l, TTL: time.Minute}
	if _, err := c.Get(t.Context(), "broken", func(context.Context) (string, error) { return "", fails }); !errors.Is(err, fails) {
		t.Error(err)
	}
}

func TestJobsOfATenantRunOneAtATime(t *testing.T) {
	t.Parallel()
	const jobs, tenants = 40, 4
	var inside [tenants]atomic.Int32
	var all, most atomic.Int32
	queue := make(chan recipes.Job)
	go func() {
		defer close(queue)
		for i := range jobs {
			n := i % tenants
			queue <- recipes.Job{Tenant: string(rune('a' + n)), Do: func(context.Context) error {
				if inside[n].Add(1) != 1 {
					t.Errorf("two jobs of tenant %d run", n)
				}
				side := all.Add(1)
				for old := most.Load(); side > old && !most.CompareAndSwap(old, side); old = most.Load() {
				}
				<-time.After(5 * time.Millisecond)
				all.Add(-1)
				inside[n].Add(-1)
				return nil
			}}
		}
	}()
	together(newPods(t), 1, func(p pod) {
		recipes.Work(t.Context(), p.l, 3, queue, func(j recipes.Job, err error) { t.Errorf("%s: %v", j.Tenant, err) })
	})
	if most.Load() < 2 {
		t.Error("jobs of different tenants have not run side by side")
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	bound := time.After(time.Minute)
	for !holds() {
		select {
		case <-time.After(2 * time.Millisecond):
		case <-bound:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
