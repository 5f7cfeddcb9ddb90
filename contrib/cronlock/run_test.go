package cronlock

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// inEntry runs a test in a bubble of synctest, with the entry of a job that records the keys of its
// leases.
func inEntry(t *testing.T, test func(t *testing.T, e *entry, ran *[]string)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		schedule, err := cron.ParseStandard("* * * * *")
		if err != nil {
			t.Fatal(err)
		}
		var ran []string
		e := &entry{locker: lockertest.NewLocker(t, lockertest.NewMemory()), name: "job", cfg: config{
			base: t.Context(), window: 30 * time.Second, skew: 5 * time.Second, logger: slog.New(slog.DiscardHandler),
		}}
		e.job = func(ctx context.Context) error {
			lease, _ := locker.FromContext(ctx)
			ran = append(ran, lease.Key())
			if key := e.keyOf(Planned(ctx)); e.interval == 0 && key != lease.Key() {
				t.Errorf("a job with the planned time of %s ran under the key %s", key, lease.Key())
			}
			return nil
		}
		e.ticks.Schedule = schedule
		test(t, e, &ran)
	})
}

// The key of a tick has the scheduled time of the tick, in UTC, even when the process starts the
// tick late.
func TestTheKeyHasTheTimeOfTheTick(t *testing.T) {
	inEntry(t, func(t *testing.T, e *entry, ran *[]string) {
		tick := e.ticks.Next(time.Now().In(time.FixedZone("somewhere", 3*3600)))
		time.Sleep(time.Until(tick) + 3*time.Second)
		e.Run()
		if len(*ran) != 1 || (*ran)[0] != "job@2000-01-01T00:01:00Z" {
			t.Errorf("%q ran, want the tick of one minute past midnight", *ran)
		}
	})
}

// The end of the context of WithBase ends the context of a job.
func TestBaseEndsJobs(t *testing.T) {
	inEntry(t, func(t *testing.T, e *entry, _ *[]string) {
		base, stop := context.WithCancel(t.Context())
		e.cfg.base = base
		e.job = func(ctx context.Context) error {
			stop()
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
				t.Error("the job still runs")
			}
			return nil
		}
		_ = e.run(time.Now())
	})
}

// A Locker of NewSemaphore(3) lets three holders share a key. A tick of every kind still runs in
// one process.
func TestATickRunsOnceOnASemaphore(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(e *entry){
		"a tick":              func(*entry) {},
		"a tick with make-up": func(e *entry) { e.cfg.makesUp, e.cfg.window = true, time.Second },
		"an interval":         func(e *entry) { e.interval = time.Minute },
		"no overlap":          func(e *entry) { e.cfg.noOverlap = true },
	} {
		t.Run(name, func(t *testing.T) {
			l, err := locker.NewSemaphore(redistest.Shared(t).Client(t), 3, locker.WithPrefix(t.Name()+":"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close(context.Background()) })
			runs, tick := 0, time.Now().Add(10*time.Second) // in the future, so that a slow machine does not make the tick too old
			e := &entry{locker: l, name: "job", cfg: config{base: t.Context(), window: 30 * time.Second, skew: 5 * time.Second}}
			set(e)
			e.job = func(context.Context) error {
				if runs++; runs > 1 {
					return nil
				}
				other := tick
				if e.cfg.noOverlap {
					other = tick.Add(time.Second) // the next tick comes while the job still runs
				}
				if err := e.run(other); !errors.Is(err, locker.ErrBusy) {
					t.Errorf("another process, while the job runs: %v, want ErrBusy", err)
				}
				return nil
			}
			if err := e.run(tick); err != nil || runs != 1 {
				t.Errorf("%d runs, %v", runs, err)
			}
		})
	}
}

// The server stands still for 0.4 s while all processes ask for a tick. The tick runs, once.
func TestAStallOfTheServerLosesNoTick(t *testing.T) {
	t.Parallel()
	schedule, err := cron.ParseStandard("* * * * *")
	if err != nil {
		t.Fatal(err)
	}
	server := redistest.Start(t)
	var runs atomic.Int32
	var entries []*entry
	for range 3 {
		l, err := locker.Open("redis://" + server.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		e := &entry{locker: l, name: "job", cfg: config{
			base: t.Context(), window: 30 * time.Second, skew: 5 * time.Second, logger: slog.New(slog.DiscardHandler),
		}}
		e.job = func(context.Context) error {
			runs.Add(1)
			return nil
		}
		e.ticks.Schedule = schedule
		entries = append(entries, e)
		if err := e.run(time.Now().Add(-time.Second)); err != nil && !errors.Is(err, locker.ErrBusy) { // the server is fast
			t.Fatal(err)
		}
	}
	for i := range 2 {
		runs.Store(0)
		server.Pause()
		time.AfterFunc(400*time.Millisecond, server.Resume)
		tick := time.Now().Truncate(time.Second).Add(time.Duration(i) * time.Second)
		var work sync.WaitGroup
		for _, e := range entries {
			work.Go(func() {
				if err := e.run(tick); err != nil && !errors.Is(err, locker.ErrBusy) {
					t.Error(err)
				}
			})
		}
		work.Wait()
		if n := runs.Load(); n != 1 {
			t.Errorf("the tick ran %d times", n)
		}
	}
}
