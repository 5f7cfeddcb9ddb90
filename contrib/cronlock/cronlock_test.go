package cronlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"

	"github.com/latchkit/latchkit/contrib/cronlock"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestMain(m *testing.M) { redistest.Main(proc.Main(m)) }

var silent = cronlock.WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))

// virtual runs a test for three processes in a bubble of synctest.
func virtual(t *testing.T, test func(t *testing.T, store *lockertest.Memory)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, lockertest.NewMemory()) })
}

// process stands for an operating-system process that has a Cron with one job.
type process struct {
	*cron.Cron
	stop context.CancelFunc
}

// start starts a process with a Cron and one job.
func start(t *testing.T, l locker.Locker, spec string, job func(context.Context) error, opts ...cronlock.Option) *process {
	t.Helper()
	c := cron.New(cron.WithLogger(cron.DiscardLogger), cron.WithParser(cron.NewParser(
		cron.SecondOptional|cron.Minute|cron.Hour|cron.Dom|cron.Month|cron.Dow|cron.Descriptor)))
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := cronlock.Once(c, l, spec, "job", job, append([]cronlock.Option{silent, cronlock.WithBase(ctx)}, opts...)...); err != nil {
		t.Fatal(err)
	}
	if n := len(c.Entries()); n != 1 {
		t.Fatalf("%d entries, want one", n)
	}
	c.Start()
	p := &process{c, cancel}
	t.Cleanup(func() { cancel(); <-c.Stop().Done() })
	return p
}

// Three processes run each tick once, even if the job takes long, and each job finds the lease in
// its context.
func TestEachTickRunsOnce(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var mu sync.Mutex
		runs := make(map[string]int)
		for i := range 3 {
			start(t, lockertest.NewLocker(t, store), "* * * * *", func(ctx context.Context) error {
				lease, ok := locker.FromContext(ctx)
				if !ok || lease.Fence() == 0 {
					t.Error("the job has no lease")
				}
				mu.Lock()
				runs[lease.Key()]++
				mu.Unlock()
				time.Sleep(time.Duration(i) * time.Millisecond)
				return nil
			})
		}
		time.Sleep(time.Hour + time.Second)
		mu.Lock()
		defer mu.Unlock()
		if len(runs) != 60 {
			t.Errorf("%d ticks ran in an hour", len(runs))
		}
		for tick, n := range runs {
			if n != 1 || !strings.HasPrefix(tick, "job@2000-01-01T0") || !strings.HasSuffix(tick, ":00Z") {
				t.Errorf("the tick %s ran %d times", tick, n)
			}
		}
	})
}

// A program may run a job by hand at any moment, also several times. After that, each tick still
// runs once. A run by hand that is followed by a tick within WithMaxSkew is the run of this tick. A
// run by hand in the second of a tick that has run is refused.
func TestARunByHandMovesNoTick(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		byHand []float64 // the moments at which one of two processes runs the job by hand, in seconds after a tick
		want   []float64 // the moments at which the job began, in the three minutes after this tick
	}{
		"between two ticks":         {[]float64{30}, []float64{0, 30, 60, 120}},
		"longer before than a skew": {[]float64{54.5}, []float64{0, 54.5, 60, 120}},
		"in the second of a tick":   {[]float64{.5}, []float64{0, 60, 120}},
		"twice before":              {[]float64{56, 58}, []float64{0, 56, 120}},
		"before each tick":          {[]float64{59, 119}, []float64{0, 59, 119}},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, store *lockertest.Memory) {
				var mu sync.Mutex
				var began []float64
				tick := time.Now().Add(time.Hour)
				time.Sleep(time.Hour - 10*time.Second)
				var all []*process
				for range 2 {
					all = append(all, start(t, lockertest.NewLocker(t, store), "* * * * *", func(context.Context) error {
						mu.Lock()
						began = append(began, time.Since(tick).Seconds())
						mu.Unlock()
						return nil
					}))
				}
				for _, moment := range c.byHand {
					time.Sleep(time.Until(tick.Add(time.Duration(moment * float64(time.Second)))))
					go all[0].Entries()[0].WrappedJob.Run()
				}
				time.Sleep(time.Until(tick.Add(3*time.Minute - time.Second)))
				mu.Lock()
				defer mu.Unlock()
				if !slices.Equal(began, c.want) {
					t.Errorf("jobs began at %v, want %v", began, c.want)
				}
			})
		})
	}
}

// late is the Locker of a process that stands still before each Acquire.
type late struct {
	locker.Locker
	delay time.Duration
}

func (l late) Acquire(ctx context.Context, r locker.Rule) (*locker.Lease, error) {
	time.Sleep(l.delay)
	return l.Locker.Acquire(ctx, r)
}

// A tick whose key is granted late does not start, because another process may have run it.
func TestAnOldTickIsNotStarted(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		for _, c := range []struct {
			late time.Duration
			runs bool
		}{{24 * time.Second, true}, {25 * time.Second, false}} {
			var runs atomic.Int32
			p := start(t, late{lockertest.NewLocker(t, store), c.late}, "0 * * * *", func(context.Context) error { runs.Add(1); return nil })
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)) + time.Minute)
			if got := runs.Load() == 1; got != c.runs {
				t.Errorf("a tick whose grant came %v late ran: %t", c.late, got)
			}
			p.stop()
			p.Stop()
			time.Sleep(2 * time.Minute) // after this pause, the key is free
		}
	})
}

// If the job of a tick failed or its process died, another process makes up for the tick. If the
// job succeeded, no process makes up for the tick. The three processes may take the tick in any
// order. If the process that dies is the last of them, no other process is left to make up for the
// tick, so the test begins again.
func TestATickIsMadeUp(t *testing.T) {
	t.Parallel()
	for range 50 {
		leftOver := int32(0)
		synctest.Test(t, func(t *testing.T) { leftOver = dieInATick(t, lockertest.NewMemory()) })
		if leftOver > 0 {
			return
		}
	}
	t.Error("the process that dies was always the last")
}

// dieInATick makes one of three processes die in its job. It returns how many of the other
// processes had not run the tick before this death.
func dieInATick(t *testing.T, store *lockertest.Memory) int32 {
	var early, runs, died atomic.Int32
	killed := store.NewProcess()
	start(t, lockertest.NewLocker(t, killed, locker.WithTTL(5*time.Second)), "0 * * * *", func(ctx context.Context) error {
		died.Add(1)
		killed.Die()
		<-ctx.Done() // the context ends, because the lease cannot be renewed
		return context.Cause(ctx)
	}, cronlock.WithMakeUp(30*time.Second))
	time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)) - time.Minute)
	for range 2 {
		start(t, lockertest.NewLocker(t, store, locker.WithTTL(5*time.Second)), "0 * * * *", func(ctx context.Context) error {
			if died.Load() == 0 {
				early.Add(1)
				return errors.New("not yet")
			}
			runs.Add(1)
			return nil
		}, cronlock.WithMakeUp(30*time.Second))
	}
	time.Sleep(2 * time.Minute)
	left := 2 - early.Load()
	if died.Load() != 1 || runs.Load() != min(left, 1) {
		t.Errorf("the first process ran %d times, the others %d times after it died", died.Load(), runs.Load())
	}
	return left
}

// A tick is skipped while the job of an earlier tick still runs in another process.
func TestTicksDoNotOverlap(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var inside, runs atomic.Int32
		for range 2 {
			start(t, lockertest.NewLocker(t, store), "* * * * *", func(context.Context) error {
				if inside.Add(1) > 1 {
					t.Error("two jobs run at the same time")
				}
				runs.Add(1)
				time.Sleep(90 * time.Second)
				inside.Add(-1)
				return nil
			}, cronlock.WithNoOverlap())
		}
		time.Sleep(time.Hour)
		if n := runs.Load(); n != 30 && n != 29 {
			t.Errorf("%d runs of 90 s in an hour, want every second tick", n)
		}
		time.Sleep(2 * time.Minute)
	})
}

// Each process counts "@every" from its own start, so the ticks of two processes come at different
// times. Together the processes run about as many jobs as one process would.
func TestEveryRunsOncePerInterval(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		var runs atomic.Int32
		for range 3 {
			start(t, lockertest.NewLocker(t, store), "@every 10m", func(context.Context) error { runs.Add(1); return nil })
			time.Sleep(3 * time.Minute)
		}
		time.Sleep(24 * time.Hour)
		if n := runs.Load(); n < 143 || n > 160 {
			t.Errorf("%d runs in a day, want one every 10 minutes", n)
		}
	})
}

// Once uses the parser of the Cron, even while the Cron runs.
func TestTheSpecIsParsedByTheCron(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		c := cron.New(cron.WithSeconds(), cron.WithLogger(cron.DiscardLogger))
		c.Start()
		defer func() { <-c.Stop().Done() }()
		var runs atomic.Int32
		id, err := cronlock.Once(c, lockertest.NewLocker(t, store), "*/10 * * * * *", "job", func(context.Context) error { runs.Add(1); return nil })
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute + time.Second)
		if c.Entry(id).Next.IsZero() || runs.Load() != 6 {
			t.Errorf("%d runs in a minute, and next at %v", runs.Load(), c.Entry(id).Next)
		}
	})
}

func TestWrongArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	l, c := lockertest.NewLocker(t, lockertest.NewMemory()), cron.New()
	job := func(context.Context) error { return nil }
	for says, once := range map[string]func() error{
		"the Locker is nil": func() error { _, err := cronlock.Once(c, nil, "@daily", "job", job); return err },
		"the name is empty": func() error { _, err := cronlock.Once(c, l, "@daily", "", job); return err },
		"expected exactly":  func() error { _, err := cronlock.Once(c, l, "daily", "job", job); return err },
		"longer than the skew": func() error {
			_, err := cronlock.Once(c, l, "@daily", "job", job, cronlock.WithWindow(5*time.Second))
			return err
		},
		"a window of 5s": func() error { // whatever WithWindow says
			_, err := cronlock.Once(c, l, "@daily", "job", job, cronlock.WithMakeUp(5*time.Second), cronlock.WithWindow(time.Hour))
			return err
		},
		"TTL or KeepFor is 30s": func() error {
			short := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithTTL(10*time.Second), locker.WithMaxTTL(10*time.Second))
			_, err := cronlock.Once(c, short, "@daily", "job", job)
			return err
		},
		"no common time": func() error {
			_, err := cronlock.Once(c, l, "@every 1m", "job", job, cronlock.WithMakeUp(30*time.Second))
			return err
		},
	} {
		if err := once(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	if n := len(c.Entries()); n != 0 {
		t.Errorf("%d entries were left", n)
	}
}

// cronProcess is a program that runs a job each second. The job adds its tick to a Redis list.
var cronProcess = proc.Register("cron", func(args []string) {
	client := redis.NewClient(&redis.Options{Addr: args[0]})
	l, err := locker.New(client)
	if err != nil {
		panic(err)
	}
	c := cron.New(cron.WithSeconds(), cron.WithLogger(cron.DiscardLogger))
	if _, err := cronlock.Once(c, l, "* * * * * *", args[1], func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		_, tick, _ := strings.Cut(lease.Key(), "@")
		return client.RPush(ctx, args[1]+":ran", tick).Err()
	}, silent, cronlock.WithWindow(4*time.Second), cronlock.WithMaxSkew(time.Second)); err != nil {
		panic(err)
	}
	c.Start()
	fmt.Println("started")
	select {}
})

// Three processes use a real server. Two of the processes are stopped for longer than the server
// remembers a tick, and then continued. No tick runs twice, and no tick is lost while the third
// process runs.
func TestProcessesThatStandStillDoubleNoTick(t *testing.T) {
	t.Parallel()
	server := redistest.Shared(t)
	var all []*proc.Child
	for range 3 {
		p := cronProcess.Start(t, server.Addr(), t.Name())
		p.Expect(t, "started")
		all = append(all, p)
	}
	first := time.Now().Add(time.Second)
	for round := range 3 {
		p := all[round%2]
		p.Pause()
		time.Sleep(time.Duration(1+3*round) * time.Second)
		p.Resume()
		time.Sleep(time.Second)
	}
	last := time.Now().Add(-2 * time.Second)
	runs := make(map[string]int)
	for _, tick := range server.Client(t).LRange(t.Context(), t.Name()+":ran", 0, -1).Val() {
		runs[tick]++
	}
	for tick, n := range runs {
		if n != 1 {
			t.Errorf("the tick of %s ran %d times", tick, n)
		}
	}
	lost := 0
	for tick := first; tick.Before(last); tick = tick.Add(time.Second) {
		if runs[tick.UTC().Format(time.RFC3339)] == 0 {
			lost++
		}
	}
	// If a process gets the key and is suspended before it starts the job, the tick is lost.
	if t.Logf("%d ticks ran", len(runs)); lost > 3 {
		t.Errorf("%d ticks did not run", lost)
	}
}

// A tick that a run by hand has run before its time is remembered as long as any other, counted
// from the tick: the clock of another process may be behind.
func TestATickThatWasRunByHandIsRememberedFromItsTime(t *testing.T) {
	virtual(t, func(t *testing.T, store *lockertest.Memory) {
		l := lockertest.NewLocker(t, store)
		p := start(t, l, "* * * * *", func(context.Context) error { return nil }, cronlock.WithWindow(6*time.Second))
		tick := time.Now().Truncate(time.Minute).Add(2 * time.Minute)
		time.Sleep(time.Until(tick.Add(-4 * time.Second)))
		p.Entries()[0].WrappedJob.Run()
		time.Sleep(time.Until(tick.Add(5500 * time.Millisecond)))
		key := "job@" + tick.UTC().Format(time.RFC3339)
		if _, err := l.Acquire(t.Context(), locker.Rule{Key: key, Wait: locker.NoWait}); !errors.Is(err, locker.ErrBusy) {
			t.Errorf("5.5 s after the tick: %v, want ErrBusy", err)
		}
	})
}
