package asynqlock_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A task that is put off must run in the end, and being put off must use no retry. asynq treats
// some tasks differently, and this test has a task of each kind.
func TestATaskThatIsPutOffUsesNoRetry(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fails    bool // the first run of the task fails before the key is busy
		plain    bool // the Guard has not configured the server
		opts     []asynq.Option
		problems []string
		retried  int
	}{
		"with retries left":                  {opts: []asynq.Option{asynq.MaxRetry(3)}, problems: []string{"lock-busy snoozed"}},
		"on the last attempt":                {fails: true, opts: []asynq.Option{asynq.MaxRetry(1)}, retried: 1},
		"with no retry allowed":              {opts: []asynq.Option{asynq.MaxRetry(0)}},
		"by a server that is not configured": {opts: []asynq.Option{asynq.MaxRetry(3)}, plain: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, store := newQueue(t), lockertest.NewMemory()
			g := guard(t, lockertest.NewLocker(t, store), asynqlock.Snooze(time.Second))
			other := lockertest.NewLocker(t, store)
			held, ran := make(chan *locker.Lease, 1), make(chan string, 1)
			hold := func() {
				lease, err := other.Acquire(context.Background(), locker.Rule{Key: busyKey})
				if err != nil {
					t.Error(err)
				}
				held <- lease
			}
			var failed atomic.Bool
			failed.Store(!tc.fails)
			if !tc.fails {
				hold()
			}
			see := &errorRecorder{}
			mux := asynq.NewServeMux()
			mux.Use(see.middleware, g.Middleware)
			cfg := promptConfig(asynq.Config{}, q.name)
			if !tc.plain {
				cfg = g.Configure(cfg)
			}
			q.run(mux, cfg, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
				if failed.CompareAndSwap(false, true) {
					go hold() // this holder takes the key as soon as this run has released the key
					await(t, "somebody waits for the key", func() bool {
						info, err := other.Inspect(ctx, busyKey)
						return err == nil && info.Waiters == 1
					})
					return errors.New("the first run fails")
				}
				id, _ := asynq.GetTaskID(ctx)
				ran <- id
				return nil
			}))
			deadline := time.Now().Add(time.Hour).Truncate(time.Second)
			info := q.enqueue("job", `{"account":"42"}`, append(tc.opts, asynq.Retention(time.Hour), asynq.Timeout(time.Minute), asynq.Deadline(deadline))...)
			lease := <-held
			if tc.problems == nil {
				await(t, "it waits for its key", func() bool {
					info, err := other.Inspect(t.Context(), busyKey)
					return err == nil && info.Waiters == 1
				})
			} else {
				await(t, "it is put off", func() bool { return len(see.problems()) > 0 })
			}
			must(t, lease.Release(t.Context()))
			var id string
			select {
			case id = <-ran:
			case <-time.After(patience):
				t.Fatal("it never runs")
			}
			if id != info.ID {
				t.Errorf("%s ran, enqueued was %s", id, info.ID)
			}
			if got := strings.Join(see.problems(), ", "); got != strings.Join(tc.problems, ", ") {
				t.Errorf("problems %q, want %q", got, tc.problems)
			}
			await(t, "it is completed", func() bool { return strings.HasPrefix(q.state(id), "completed") })
			end, err := q.inspector.GetTaskInfo(q.name, id)
			must(t, err)
			if end.Retried != tc.retried {
				t.Errorf("%d of %d retries used; %d were used before", end.Retried, end.MaxRetry, tc.retried)
			}
			if end.Timeout != time.Minute || !end.Deadline.Equal(deadline) || end.Retention != time.Hour || string(end.Payload) != `{"account":"42"}` {
				t.Errorf("it is another task now: %+v", end)
			}
		})
	}
}

// If a task cannot be put off any more, asynq archives it. The ErrorHandler must get the error of
// this task.
func TestATaskThatCannotWaitAnyLongerIsReported(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		opts  []asynq.Option
		plain bool
		state string
		says  asynqlock.Verdict
	}{
		"no retry left":              {[]asynq.Option{asynq.MaxRetry(0)}, false, "archived after 0 retries", asynqlock.Archived},
		"a server not configured":    {[]asynq.Option{asynq.MaxRetry(1)}, true, "retry after 1 retries", asynqlock.Failed},
		"its last attempt is not it": {[]asynq.Option{asynq.MaxRetry(1)}, false, "retry after 0 retries", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, store := newQueue(t), lockertest.NewMemory()
			lease, err := lockertest.NewLocker(t, store).Acquire(t.Context(), locker.Rule{Key: busyKey})
			must(t, err)
			defer lease.Release(t.Context()) //nolint:errcheck // the lock is in memory
			told := make(chan error, 10)
			cfg := promptConfig(asynq.Config{
				ErrorHandler:   asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { told <- err }),
				RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
			}, q.name)
			g := guard(t, lockertest.NewLocker(t, store), asynqlock.Snooze(time.Hour))
			if !tc.plain {
				cfg = g.Configure(cfg)
			}
			mux := asynq.NewServeMux()
			mux.Use(g.Middleware)
			q.run(mux, cfg, asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return errors.New("it ran") }))
			id := q.enqueue("job", `{"account":"42"}`, append(tc.opts, asynq.Timeout(5*time.Second))...).ID
			await(t, "it is "+tc.state, func() bool { return q.state(id) == tc.state })
			if len(told) == 0 {
				if tc.says != "" {
					t.Error("nobody was told")
				}
				return
			}
			p, ok := errors.AsType[*asynqlock.Problem](<-told)
			if !ok || p.Verdict != tc.says || p.Code != asynqlock.CodeBusy || p.RetryAfter != 0 || !errors.Is(p, locker.ErrBusy) {
				t.Errorf("the error is %v, want %s", p, tc.says)
			}
		})
	}
}

// No task runs without the lock, even if the lock server is down. But no task is lost because the
// lock server is down, even if the task has no retries.
func TestATaskWithoutARetryOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	q, backend := newQueue(t), lockertest.NewMemory()
	backend.Fail(locker.OpAcquire, &store.Refusal{Err: errors.New("out of memory")})
	ran := make(chan struct{})
	q.serve(guard(t, lockertest.NewLocker(t, backend), asynqlock.Snooze(time.Second)), asynq.Config{},
		asynq.HandlerFunc(func(context.Context, *asynq.Task) error { close(ran); return nil }))
	id := q.enqueue("job", `{"account":"42"}`, asynq.MaxRetry(0), asynq.Retention(time.Hour)).ID
	await(t, "it tries again", func() bool { return backend.Calls(locker.OpAcquire) > 1 })
	select {
	case <-ran:
		t.Error("it ran without its lock")
	default:
	}
	backend.Fail(locker.OpAcquire, nil)
	await(t, "it is done", func() bool { return q.state(id) == "completed after 0 retries" })
}
