package gocronlock_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/latchkit/latchkit/contrib/gocronlock"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lead"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

// single makes the Locker of one process, on a real server.
func single(t *testing.T) *locker.Engine {
	t.Helper()
	l, err := locker.New(redistest.Shared(t).Client(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return l
}

// schedule runs a job of a real scheduler until the test ends.
func schedule(t *testing.T, spec gocron.JobDefinition, job func(), opts ...gocron.SchedulerOption) {
	t.Helper()
	s, err := gocron.NewScheduler(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	if _, err := s.NewJob(spec, gocron.NewTask(job), gocron.WithName(t.Name())); err != nil {
		t.Fatal(err)
	}
	s.Start()
}

// Three schedulers have a job that ends quickly. Each tick runs once.
func TestEachTickRunsOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	runs := make(map[int64]int)
	for range 3 {
		each, err := gocronlock.PerTick(single(t), gocronlock.Round(time.Second), gocronlock.WithWindow(4*time.Second), gocronlock.WithMaxSkew(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		schedule(t, gocron.CronJob("* * * * * *", true), func() {
			mu.Lock()
			defer mu.Unlock()
			runs[time.Now().Round(time.Second).Unix()]++
		}, gocron.WithDistributedLocker(each))
	}
	time.Sleep(6 * time.Second)
	mu.Lock()
	defer mu.Unlock()
	if len(runs) < 4 {
		t.Errorf("%d ticks ran in 6 s", len(runs))
	}
	total := 0
	for _, n := range runs {
		total += n
	}
	if total > 7 { // a tick that ran late may have been counted as a tick of the next second
		t.Errorf("%d runs in 6 s: %v", total, runs)
	}
}

// take acquires a lock, and fails the test if the Locker refuses.
func take(t *testing.T, l gocron.Locker, name string) gocron.Lock {
	t.Helper()
	lock, err := l.Lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

// Each tick has a key of its own, which is still remembered after the end of the job. It is the same
// in all time zones.
func TestATickIsRemembered(t *testing.T) {
	t.Parallel()
	store := lockertest.NewMemory()
	noon := time.Now().Truncate(time.Second)
	tick := atomic.Pointer[time.Time]{}
	tick.Store(&noon)
	var all []gocron.Locker
	for hours := range 2 {
		zone := time.FixedZone("", hours*3600)
		l, err := gocronlock.PerTick(lockertest.NewLocker(t, store), func(string) time.Time { return tick.Load().In(zone) })
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, l)
	}
	if err := take(t, all[0], "job").Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := all[1].Lock(t.Context(), "job"); !errors.Is(err, locker.ErrBusy) {
		t.Errorf("the same tick: %v", err)
	}
	_ = take(t, all[1], "another job").Unlock(t.Context())
	next := noon.Add(time.Second)
	tick.Store(&next)
	_ = take(t, all[1], "job").Unlock(t.Context())
	old := noon.Add(-25 * time.Second)
	tick.Store(&old)
	releases := store.Calls(locker.OpRelease)
	if _, err := all[1].Lock(t.Context(), "job"); !errors.Is(err, gocronlock.ErrLate) {
		t.Errorf("an old tick: %v", err)
	}
	if n := store.Calls(locker.OpRelease) - releases; n != 1 {
		t.Errorf("the lock of the old tick was released %d times", n)
	}
}

// A process was stopped at the time of a tick, and resumes before the next tick. It runs neither of
// the two ticks, because another process has run the first one and will run the second one.
func TestALateProcessDoesNotTakeTheNextTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := lockertest.NewMemory()
		var all []gocron.Locker
		for range 2 {
			l, err := gocronlock.PerTick(lockertest.NewLocker(t, store), gocronlock.Round(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		time.Sleep(time.Until(time.Now().Round(time.Minute).Add(time.Minute)))
		_ = take(t, all[0], "job").Unlock(t.Context())
		time.Sleep(40 * time.Second)
		if _, err := all[1].Lock(t.Context(), "job"); !errors.Is(err, gocronlock.ErrLate) {
			t.Errorf("40 s after its tick: %v", err)
		}
		time.Sleep(16 * time.Second) // now it is 4 s before the next tick: a process whose clock is 4 s ahead asks at this time
		_ = take(t, all[1], "job").Unlock(t.Context())
		time.Sleep(4 * time.Second)
		if _, err := all[0].Lock(t.Context(), "job"); !errors.Is(err, locker.ErrBusy) {
			t.Errorf("the tick that runs already: %v", err)
		}
	})
}

// A process starts a tick until the tick's age is WithWindow minus WithMaxSkew. A hundredth of
// WithWindow is also subtracted, because clocks run at different rates. A tick may be in the future
// by WithMaxSkew.
func TestTheBoundsOfATicksAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const window, skew = 100 * time.Second, 10 * time.Second
		for age, late := range map[time.Duration]bool{
			-skew - 1: true, -skew: false, 0: false, 89*time.Second - 1: false, 89 * time.Second: true,
		} {
			l, err := gocronlock.PerTick(lockertest.NewLocker(t, lockertest.NewMemory()),
				func(string) time.Time { return time.Now().Add(-age) }, gocronlock.WithWindow(window), gocronlock.WithMaxSkew(skew))
			if err != nil {
				t.Fatal(err)
			}
			lock, err := l.Lock(t.Context(), "job")
			if errors.Is(err, gocronlock.ErrLate) != late || (err == nil) == late {
				t.Errorf("a tick %v ago: %v", age, err)
			}
			if lock != nil {
				_ = lock.Unlock(t.Context())
			}
		}
	})
}

// A tick is remembered for the time of WithWindow after its start. This is long enough for one
// process that starts the tick too early and another process that asks for it too late.
func TestATickIsRememberedForItsWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, tick := lockertest.NewMemory(), time.Now().Add(5*time.Second) // the first process is early by WithMaxSkew
		var all []gocron.Locker
		for range 2 {
			l, err := gocronlock.PerTick(lockertest.NewLocker(t, store), func(string) time.Time { return tick })
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, l)
		}
		_ = take(t, all[0], "job").Unlock(t.Context())
		time.Sleep(29600 * time.Millisecond) // the tick is 24.6 s old, just below the limit: the default WithWindow minus WithMaxSkew and minus a hundredth of Window
		if _, err := all[1].Lock(t.Context(), "job"); !errors.Is(err, locker.ErrBusy) {
			t.Errorf("the tick that has run: %v", err)
		}
		_ = take(t, all[1], "another job").Unlock(t.Context())
	})
}

// A process that does not lead sends no acquire to the server.
func TestALockWhileLeadingAsksTheLeaderFirst(t *testing.T) {
	t.Parallel()
	store := lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	leader, err := lead.New(l, locker.Rule{Key: "scheduler"})
	if err != nil {
		t.Fatal(err)
	}
	each, err := gocronlock.NoOverlap(l)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gocronlock.WhileLeading(leader, each).Lock(t.Context(), "job"); !errors.Is(err, gocronlock.ErrNotLeading) {
		t.Errorf("a process that does not lead: %v", err)
	}
	if n := store.Calls(locker.OpAcquire); n != 0 {
		t.Errorf("%d locks were asked for", n)
	}
}

// An interval is remembered for nine tenths of its length, counted from the start of the job.
func TestAnIntervalIsRememberedForNineTenths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, err := gocronlock.PerInterval(lockertest.NewLocker(t, lockertest.NewMemory()), 100*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		first := take(t, l, "job")
		time.Sleep(5 * time.Second)
		_ = first.Unlock(t.Context())
		time.Sleep(84 * time.Second)
		if _, err := l.Lock(t.Context(), "job"); !errors.Is(err, locker.ErrBusy) {
			t.Errorf("after 89 s: %v", err)
		}
		time.Sleep(2 * time.Second)
		_ = take(t, l, "job").Unlock(t.Context())
	})
}

func TestNoOverlapFreesTheKey(t *testing.T) {
	t.Parallel()
	store := lockertest.NewMemory()
	lost := make(chan error, 1)
	l, err := gocronlock.NoOverlap(lockertest.NewLocker(t, store, locker.WithTTL(time.Second)), gocronlock.WithOnLost(func(name string, cause error) {
		if name != "job" {
			t.Errorf("the lock of %s was lost", name)
		}
		lost <- cause
	}))
	if err != nil {
		t.Fatal(err)
	}
	lock := take(t, l, "job")
	_ = take(t, l, "another job").Unlock(t.Context())
	if _, err := l.Lock(t.Context(), "job"); !errors.Is(err, locker.ErrBusy) {
		t.Errorf("while the job runs: %v", err)
	}
	if err := lock.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	_ = take(t, l, "job")
	if len(lost) != 0 {
		t.Errorf("WithOnLost was called for a release: %v", <-lost)
	}
	store.Steal("job")
	if cause := <-lost; !errors.Is(cause, locker.ErrLost) {
		t.Errorf("WithOnLost was called with %v", cause)
	}
}

// Only the leader runs jobs. After a change of the leader, the next leader runs the jobs.
func TestOnlyTheLeaderRunsJobs(t *testing.T) {
	t.Parallel()
	type process struct {
		leader *lead.Leader
		runs   atomic.Int32
		stop   context.CancelFunc
		ended  chan error
	}
	var all []*process
	for range 2 {
		l := single(t)
		leader, err := lead.New(l, locker.Rule{Key: t.Name()}, lead.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		p := &process{leader: leader, stop: stop, ended: make(chan error, 1)}
		go func() {
			p.ended <- leader.Run(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
		}()
		each, err := gocronlock.PerTick(l, gocronlock.Round(100*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		count := func() {
			if _, leading := leader.Leading(); leading {
				p.runs.Add(1)
			}
		}
		schedule(t, gocron.DurationJob(100*time.Millisecond), count, gocron.WithDistributedElector(gocronlock.NewElector(leader)))
		schedule(t, gocron.DurationJob(100*time.Millisecond), count, gocron.WithDistributedLocker(gocronlock.WhileLeading(leader, each)))
		all = append(all, p)
	}
	await := func(what string, holds func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not within a minute: %s", what)
			}
		}
	}
	first, second := all[0], all[1]
	await("one leads and runs", func() bool { return first.runs.Load()+second.runs.Load() > 3 })
	if second.runs.Load() > 0 {
		first, second = second, first
	}
	if second.runs.Load() > 0 {
		t.Error("both run jobs")
	}
	if err := gocronlock.NewElector(second.leader).IsLeader(t.Context()); !errors.Is(err, gocronlock.ErrNotLeading) {
		t.Errorf("the process that does not lead: %v", err)
	}
	first.stop()
	if err := <-first.ended; err != nil {
		t.Error(err)
	}
	before := first.runs.Load()
	await("the other one runs", func() bool { return second.runs.Load() > 3 })
	if first.runs.Load() != before {
		t.Error("the first one runs jobs although it leads no longer")
	}
	second.stop()
	if err := <-second.ended; err != nil {
		t.Error(err)
	}
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	tick := gocronlock.Round(time.Second)
	for says, make := range map[string]func() (gocron.Locker, error){
		"the Locker is nil": func() (gocron.Locker, error) { return gocronlock.PerTick(nil, tick) },
		"every is 0s":       func() (gocron.Locker, error) { return gocronlock.PerInterval(l, 0) },
		"positive duration": func() (gocron.Locker, error) { // with Round(0), each call would be a tick of its own
			each, err := gocronlock.PerTick(l, gocronlock.Round(0))
			if err == nil {
				_, err = each.Lock(t.Context(), "job")
			}
			return each, err
		},
		"make one with PerTick": func() (gocron.Locker, error) {
			_, err := gocronlock.WhileLeading(nil, nil).Lock(t.Context(), "job")
			return nil, err
		},
		"TTL or KeepFor is 30s": func() (gocron.Locker, error) {
			short := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithTTL(10*time.Second), locker.WithMaxTTL(10*time.Second))
			return gocronlock.PerTick(short, tick)
		},
		"longer than the skew": func() (gocron.Locker, error) {
			return gocronlock.PerTick(l, tick, gocronlock.WithMaxSkew(time.Minute))
		},
	} {
		if _, err := make(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

// A Locker of NewSemaphore(3) lets three holders share a key. A job still runs in one process, with
// every constructor.
func TestAJobRunsOnceOnASemaphore(t *testing.T) {
	t.Parallel()
	l, err := locker.NewSemaphore(redistest.Shared(t).Client(t), 3, locker.WithPrefix(t.Name()+":"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	tick := time.Now().Add(2 * time.Second)
	for name, make := range map[string]func() (gocron.Locker, error){
		"PerTick":     func() (gocron.Locker, error) { return gocronlock.PerTick(l, func(string) time.Time { return tick }) },
		"PerInterval": func() (gocron.Locker, error) { return gocronlock.PerInterval(l, time.Minute) },
		"NoOverlap":   func() (gocron.Locker, error) { return gocronlock.NoOverlap(l) },
	} {
		jobs, err := make()
		if err != nil {
			t.Fatal(err)
		}
		lock := take(t, jobs, name)
		if _, err := jobs.Lock(t.Context(), name); !errors.Is(err, locker.ErrBusy) {
			t.Errorf("%s: another process, while the job runs: %v, want ErrBusy", name, err)
		}
		if err := lock.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
