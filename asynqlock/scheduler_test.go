package asynqlock_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// The clocks of two processes differ. Both processes want to enqueue a tick of the same second, one
// after the other. The second process finds that the slot is claimed.
func TestATickIsClaimedByItsSlot(t *testing.T) {
	t.Parallel()
	q, backend := newQueue(t), lockertest.NewMemory()
	task := asynq.NewTask("tick", []byte("payload"))
	var recorder lockertest.Recorder
	first, second := lockertest.NewLocker(t, backend), lockertest.NewLocker(t, backend, locker.WithObserver(&recorder))
	for range 20 {
		slot := time.Now().Unix()
		tick, stop := term(t, q, first, task)
		switch {
		case !tick():
			t.Error("a first tick did not pass")
		case !tick():
			t.Error("a process refused a tick that is not the first of its entry in this second")
		case !tick(asynq.Queue("low")), !tick(asynq.MaxRetry(1), asynq.Queue("low")):
			t.Error("another entry's tick did not pass")
		}
		stop()
		tick, stop = term(t, q, second, task)
		passed, other := tick(), tick(asynq.Queue("high"))
		again := tick() // this is a tick of an equal entry
		reordered := tick(asynq.Queue("low"), asynq.MaxRetry(1))
		backend.Fail(locker.OpAcquire, &store.Refusal{Err: errors.New("out of memory")})
		blind := tick(asynq.Queue("middle"))
		backend.Fail(locker.OpAcquire, nil)
		stop()
		if !blind || !other {
			t.Errorf("ticks that no process has claimed, or can claim now, did not pass: %t, %t", other, blind)
		}
		if time.Now().Unix() != slot {
			continue // this machine was too slow: the two ticks had different slots
		}
		if ticks := recorder.Records("tick"); len(ticks) < 6 || ticks[len(ticks)-6].Outcome.Result != locker.ResultBusy {
			t.Errorf("the Observer saw %+v", ticks)
		}
		if passed || again || reordered {
			t.Errorf("the same slot was enqueued by both: %t, by the second of two equal entries: %t, with the options in another order: %t", passed, again, reordered)
		}
		return
	}
	t.Error("no second was long enough for two terms")
}

// term makes a process lead, until stop is called. The returned function tick returns true if the
// process may enqueue a tick that is due now.
func term(t *testing.T, q *queue, l locker.Locker, task *asynq.Task, more ...asynqlock.SchedulerOption) (tick func(opts ...asynq.Option) bool, stop func()) {
	t.Helper()
	hooks, ended := make(chan func(*asynq.Task, []asynq.Option), 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		ended <- asynqlock.RunScheduler(ctx, l, locker.Rule{}, func(opts *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
			hooks <- opts.PreEnqueueFunc
			return asynq.NewSchedulerFromRedisClient(q.redis, opts), nil
		}, append([]asynqlock.SchedulerOption{asynqlock.WithSchedulerBase(asynq.SchedulerOpts{Logger: quiet{}})}, more...)...)
	}()
	hook := <-hooks
	tick = func(opts ...asynq.Option) bool {
		passed := make(chan bool, 1)
		go func() {
			defer close(passed)
			hook(task, opts) // hook either returns or ends this goroutine
			passed <- true
		}()
		return <-passed
	}
	return tick, func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if tick() {
			t.Error("a tick passed when the term was over")
		}
	}
}

// When a leader has lost the lock, it stops its scheduler before it leads again.
func TestEachTermHasItsScheduler(t *testing.T) {
	t.Parallel()
	q, store := newQueue(t), lockertest.NewMemory()
	operator := lockertest.NewLocker(t, store)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	terms, ended := make(chan *asynq.Scheduler, 2), make(chan error, 1)
	stopped := func(s *asynq.Scheduler) {
		t.Helper()
		if err := s.Start(); err == nil || !strings.Contains(err.Error(), "stopped") {
			t.Errorf("%v, want that it has been stopped", err)
		}
	}
	var before *asynq.Scheduler
	go func() {
		ended <- asynqlock.RunScheduler(ctx, lockertest.NewLocker(t, store), locker.Rule{Key: "mine"}, func(opts *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
			s := asynq.NewSchedulerFromRedisClient(q.redis, opts)
			if before != nil {
				stopped(before)
			}
			before = s
			terms <- s
			return s, nil
		}, asynqlock.WithSchedulerBase(asynq.SchedulerOpts{Logger: quiet{}}))
	}()
	<-terms
	info, err := operator.Inspect(t.Context(), "mine")
	if err != nil {
		t.Fatal(err)
	}
	if err := operator.Revoke(t.Context(), "mine", info.Fence, "on purpose"); err != nil {
		t.Fatal(err)
	}
	second := <-terms
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	stopped(second)
	if info, err := operator.Inspect(t.Context(), "mine"); err != nil || info.Held {
		t.Errorf("a stopped process still leads: %+v, %v", info, err)
	}
}

// Each second is a slot of its own, and is claimed separately.
func TestEachSecondIsClaimed(t *testing.T) {
	t.Parallel()
	q, store := newQueue(t), lockertest.NewMemory()
	tick, stop := term(t, q, lockertest.NewLocker(t, store), asynq.NewTask("tick", nil))
	defer stop()
	for range 3 {
		asked := store.Calls(locker.OpAcquire)
		if !tick() || store.Calls(locker.OpAcquire) == asked {
			t.Error("a tick did not pass, or without its slot")
		}
		slot := time.Now().Unix()
		await(t, "it is the next second", func() bool { return time.Now().Unix() > slot })
	}
}

// A tick claims its slot. The claim does not count if another process leads when the answer comes.
func TestATickWhoseTermEndsBeforeItsAnswerDoesNotPass(t *testing.T) {
	t.Parallel()
	q, store := newQueue(t), lockertest.NewMemory()
	tick, stop := term(t, q, lockertest.NewLocker(t, store), asynq.NewTask("tick", nil))
	store.Delay(locker.OpAcquire, time.Second)
	asked, passed := store.Calls(locker.OpAcquire), make(chan bool, 1)
	go func() { passed <- tick() }()
	await(t, "it asks", func() bool { return store.Calls(locker.OpAcquire) > asked })
	stop()
	if <-passed {
		t.Error("it passed")
	}
}

// The program's own PreEnqueueFunc is called only for the ticks that are enqueued.
func TestThePreEnqueueFuncIsCalledForTicksThatPass(t *testing.T) {
	t.Parallel()
	q, store := newQueue(t), lockertest.NewMemory()
	called := 0
	own := asynqlock.WithSchedulerBase(asynq.SchedulerOpts{Logger: quiet{}, PreEnqueueFunc: func(*asynq.Task, []asynq.Option) { called++ }})
	tick, stop := term(t, q, lockertest.NewLocker(t, store), asynq.NewTask("tick", nil), own)
	if !tick() || called != 1 {
		t.Errorf("it was called %d times for a tick that passed", called)
	}
	stop()
	if called != 1 {
		t.Errorf("it was called %d times, also for a tick that did not pass", called)
	}
}

func TestASchedulerThatCannotRunSaysSo(t *testing.T) {
	t.Parallel()
	l := lockertest.NewLocker(t, lockertest.NewMemory())
	torn := errors.New("the table of schedules is torn")
	none := func(*asynq.SchedulerOpts) (*asynq.Scheduler, error) { return nil, nil }
	for says, run := range map[string]func() error{
		"the table of schedules is torn": func() error {
			return asynqlock.RunScheduler(t.Context(), l, locker.Rule{}, func(*asynq.SchedulerOpts) (*asynq.Scheduler, error) { return nil, torn })
		},
		"build returned no scheduler": func() error { return asynqlock.RunScheduler(t.Context(), l, locker.Rule{}, none) },
		"the Locker is nil":           func() error { return asynqlock.RunScheduler(t.Context(), nil, locker.Rule{}, none) },
		"TTL is 1ns":                  func() error { return asynqlock.RunScheduler(t.Context(), l, locker.Rule{TTL: 1}, none) },
		"no tick can be claimed": func() error {
			l := lockertest.NewLocker(t, lockertest.NewMemory(), locker.WithMaxTTL(20*time.Second), locker.WithTTL(20*time.Second))
			return asynqlock.RunScheduler(t.Context(), l, locker.Rule{}, func(opts *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
				return asynq.NewSchedulerFromRedisClient(newQueue(t).redis, opts), nil
			})
		},
		"without the given options": func() error {
			return asynqlock.RunScheduler(t.Context(), l, locker.Rule{}, func(*asynq.SchedulerOpts) (*asynq.Scheduler, error) {
				return asynq.NewSchedulerFromRedisClient(newQueue(t).redis, &asynq.SchedulerOpts{}), nil
			})
		},
		"asynqlock: RunScheduler: build made the scheduler without the given options": func() error {
			return asynqlock.RunScheduler(t.Context(), l, locker.Rule{}, func(*asynq.SchedulerOpts) (*asynq.PeriodicTaskManager, error) {
				q := newQueue(t)
				return asynq.NewPeriodicTaskManager(asynq.PeriodicTaskManagerOpts{PeriodicTaskConfigProvider: schedule(q.name), RedisUniversalClient: q.redis})
			})
		},
		"RunScheduler: build returned no scheduler": func() error {
			return asynqlock.RunScheduler(t.Context(), l, locker.Rule{}, func(*asynq.SchedulerOpts) (*asynq.PeriodicTaskManager, error) { return nil, nil })
		},
	} {
		if err := run(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	if info, err := l.Inspect(t.Context(), "asynq-scheduler"); err != nil || info.Held {
		t.Errorf("it still leads: %+v, %v", info, err)
	}
}

// A metric shows whether a schedule ticks. The metric also shows whether processes disagree about
// the leader.
func TestTheObserverSeesWhatBecomesOfTicks(t *testing.T) {
	t.Parallel()
	var recorder lockertest.Recorder
	q, backend := newQueue(t), lockertest.NewMemory()
	task := asynq.NewTask("tick", nil)
	l := lockertest.NewLocker(t, backend, locker.WithObserver(&recorder))
	results := func() (all []locker.Result) {
		for _, r := range recorder.Records("tick") {
			if r.Rule.Name != "asynq-scheduler" || r.Outcome.Fence == 0 {
				t.Errorf("a tick of %+v with %+v", r.Rule, r.Outcome)
			}
			all = append(all, r.Outcome.Result)
		}
		return all
	}
	tick, stop := term(t, q, l, task)
	tick()
	backend.Fail(locker.OpAcquire, store.ErrUnavailable)
	tick(asynq.Queue("low"))
	backend.Fail(locker.OpAcquire, nil)
	stop() // the scheduler ticks once more before it ends
	if got, want := results(), []locker.Result{"enqueued", "enqueued", locker.ResultLost}; !slices.Equal(got, want) {
		t.Errorf("the ticks were %q, want %q", got, want)
	}
}

// runSchedule runs a scheduler that ticks each second until stop is called.
func runSchedule(t *testing.T, q *queue, store *lockertest.Memory, opts ...asynqlock.SchedulerOption) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	base := []asynqlock.SchedulerOption{asynqlock.WithSchedulerBase(asynq.SchedulerOpts{Logger: quiet{}})}
	go func() {
		ended <- asynqlock.RunScheduler(ctx, lockertest.NewLocker(t, store), locker.Rule{Key: q.name}, func(o *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
			s := asynq.NewSchedulerFromRedisClient(q.redis, o)
			_, err := s.Register("@every 1s", asynq.NewTask("job", []byte(`{"account":"42"}`), asynq.Queue(q.name)))
			return s, err
		}, append(base, opts...)...)
	}()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// Ticks are enqueued like other tasks: they carry the trace and the leader's fence, and a Unique
// tick is in the queue only once.
func TestTicksCarryTraceAndUnique(t *testing.T) {
	t.Parallel()
	q, store := newQueue(t), lockertest.NewMemory()
	g := guardOf(t, lockertest.NewLocker(t, store), asynqlock.WithPropagator(shout{}),
		asynqlock.On("job", asynqlock.Template("account:{payload.account}"), asynqlock.Unique()))
	var mu sync.Mutex
	var refused int
	base := asynq.SchedulerOpts{Logger: quiet{}, PostEnqueueFunc: func(_ *asynq.TaskInfo, err error) {
		mu.Lock()
		defer mu.Unlock()
		if errors.Is(err, asynq.ErrDuplicateTask) {
			refused++
		}
	}}
	var leads atomic.Int32
	stop := runSchedule(t, q, store, asynqlock.WithSchedulerClient(g.Client(q.client, q.inspector)), asynqlock.WithSchedulerBase(base),
		asynqlock.WithOnLeading(func(yes bool) {
			if yes {
				leads.Add(1)
			} else {
				leads.Add(-1)
			}
		}))
	await(t, "a second tick was refused", func() bool { mu.Lock(); defer mu.Unlock(); return refused > 0 })
	if leads.Load() != 1 {
		t.Error("OnLeading was not called")
	}
	stop()
	if leads.Load() != 0 {
		t.Error("OnLeading was not called when the term was over")
	}
	tasks, err := q.inspector.ListPendingTasks(q.name)
	if err != nil || len(tasks) != 1 {
		t.Fatalf("%d tasks, %v", len(tasks), err)
	}
	fences := asynqlock.Fences(asynq.NewTaskWithHeaders("job", nil, tasks[0].Headers))
	if _, ok := tasks[0].Headers["shout"]; !ok || len(fences) != 1 || fences[0].Key != q.name {
		t.Errorf("the tick has the headers %v", tasks[0].Headers)
	}
}

// In an earlier version, a build function could replace the given PreEnqueueFunc, which lets only
// claimed ticks pass. Then, after the loss of a lock, three of nine seconds had two ticks.
func TestAReplacedPreEnqueueFuncIsRefused(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	run := func(own func(given func(*asynq.Task, []asynq.Option)) func(*asynq.Task, []asynq.Option)) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		return asynqlock.RunScheduler(ctx, lockertest.NewLocker(t, lockertest.NewMemory()), locker.Rule{}, func(o *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
			o.PreEnqueueFunc = own(o.PreEnqueueFunc)
			return asynq.NewSchedulerFromRedisClient(q.redis, o), nil
		}, asynqlock.WithSchedulerBase(asynq.SchedulerOpts{Logger: quiet{}}), asynqlock.WithOnLeading(func(bool) { cancel() }))
	}
	metrics := func(*asynq.Task, []asynq.Option) {}
	if err := run(func(func(*asynq.Task, []asynq.Option)) func(*asynq.Task, []asynq.Option) { return metrics }); err == nil || !strings.Contains(err.Error(), "WithSchedulerBase") {
		t.Errorf("%v, want that it is refused", err)
	}
	if err := run(func(given func(*asynq.Task, []asynq.Option)) func(*asynq.Task, []asynq.Option) {
		return func(task *asynq.Task, opts []asynq.Option) { metrics(task, opts); given(task, opts) }
	}); err != nil {
		t.Errorf("one that calls the function that was there: %v", err)
	}
}

// A Locker of NewSemaphore(3) lets three holders share a key. Still one process runs the schedule,
// and one process enqueues a tick when the clocks of two leaders differ.
func TestASemaphoreElectsOneLeaderOfASchedule(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	var lockers [2]*locker.Engine
	for i := range lockers {
		l, err := locker.NewSemaphore(q.redis, 3, locker.WithPrefix(q.name+":"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		lockers[i] = l
	}
	task := asynq.NewTask("tick", nil)
	shared := asynqlock.WithSchedulerLogger(slog.New(slog.DiscardHandler))
	_, stop := term(t, q, lockers[0], task, shared)
	ctx, cancel := context.WithCancel(t.Context())
	led, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- asynqlock.RunScheduler(ctx, lockers[1], locker.Rule{}, func(opts *asynq.SchedulerOpts) (*asynq.Scheduler, error) {
			close(led)
			return asynq.NewSchedulerFromRedisClient(q.redis, opts), nil
		}, shared)
	}()
	await(t, "the second process waits, or leads", func() bool {
		info, err := lockers[0].Inspect(t.Context(), "asynq-scheduler")
		select {
		case <-led:
			t.Error("two processes lead the schedule")
			return true
		default:
			return err == nil && info.Waiters == 1
		}
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	stop()
	for range 20 {
		slot := time.Now().Unix()
		var passed [2]bool
		for i, l := range lockers {
			tick, stop := term(t, q, l, task, shared)
			passed[i] = tick()
			stop()
		}
		if time.Now().Unix() != slot {
			continue // this machine was too slow: the two ticks had different slots
		}
		if passed != [2]bool{true, false} {
			t.Errorf("two leaders with a tick of the same second: %v passed, want the first", passed)
		}
		return
	}
	t.Error("no second was long enough for two terms")
}
