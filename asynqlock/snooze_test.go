package asynqlock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A task whose key is busy must run in the end, and use no retry. asynq would count a retry of some
// tasks, so these wait in their workers.
func TestATaskWhoseKeyIsBusyUsesNoRetry(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		retries  int
		plain    bool // the Guard has not configured the server
		problems []string
	}{
		"with retries left":                  {3, false, []string{"lock-busy snoozed"}},
		"with no retry left":                 {0, false, nil},
		"by a server that is not configured": {3, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, store, work, see := newQueue(t), lockertest.NewMemory(), &record{}, &errorRecorder{}
			other := lockertest.NewLocker(t, store)
			lease, err := other.Acquire(t.Context(), locker.Rule{Key: busyKey})
			must(t, err)
			g := guard(t, lockertest.NewLocker(t, store), asynqlock.Snooze(time.Second))
			mux, cfg := asynq.NewServeMux(), promptConfig(asynq.Config{}, q.name)
			mux.Use(see.middleware, g.Middleware)
			if !tc.plain {
				cfg = g.Configure(cfg)
			}
			q.run(mux, cfg, work)
			id := q.enqueue("job", `{"account":"42"}`, asynq.MaxRetry(tc.retries), asynq.Retention(time.Hour)).ID
			await(t, "it is put off, or waits for its key", func() bool {
				info, err := other.Inspect(t.Context(), busyKey)
				return len(see.problems()) > 0 || err == nil && info.Waiters == 1
			})
			must(t, lease.Release(t.Context()))
			await(t, "it is done", func() bool { return q.state(id) == "completed after 0 retries" })
			if got := see.problems(); !slices.Equal(got, tc.problems) {
				t.Errorf("problems %q, want %q", got, tc.problems)
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
		"no retry left":           {[]asynq.Option{asynq.MaxRetry(0)}, false, "archived after 0 retries", asynqlock.Archived},
		"a server not configured": {[]asynq.Option{asynq.MaxRetry(1)}, true, "retry after 1 retries", asynqlock.Failed},
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
