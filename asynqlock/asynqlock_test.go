package asynqlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

const busyKey = "account:42"

// When a handler panics, its key must not stay locked for the rest of the TTL.
func TestAPanicGivesTheKeyUp(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	panicked := make(chan struct{}, 1)
	see := q.serve(guard(t, q.locker(), asynqlock.Snooze(time.Hour)), asynq.Config{}, asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		select {
		case panicked <- struct{}{}:
			panic("on purpose")
		default:
			return nil
		}
	}))
	id := q.enqueue("job", `{"account":"42"}`, asynq.Retention(time.Hour)).ID
	await(t, "it is retried", func() bool { return q.state(id) == "completed after 1 retries" })
	if all := see.problems(); len(all) > 0 {
		t.Errorf("%v: its own key was still taken", all)
	}
}

// When a task has lost its lock, another task may have run meanwhile. So the success of the task
// that lost its lock is unknown, even if its handler returned nil.
func TestATaskThatLostItsLockHasFailed(t *testing.T) {
	t.Parallel()
	theirs := errors.New("theirs")
	for name, returns := range map[string]error{"the handler fails": theirs, "the handler succeeds": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, store := newQueue(t), lockertest.NewMemory()
			operator := lockertest.NewLocker(t, store)
			var runs atomic.Int32
			told := make(chan error, 1)
			cfg := asynq.Config{ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { told <- err })}
			q.serve(guard(t, lockertest.NewLocker(t, store), asynqlock.Once(time.Hour)), cfg, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
				if runs.Add(1) > 1 {
					return nil
				}
				lease, _ := locker.FromContext(ctx)
				if err := operator.Revoke(ctx, busyKey, lease.Fence(), "on purpose"); err != nil {
					t.Error(err)
				}
				if err := lease.Extend(ctx, time.Minute); !errors.Is(err, locker.ErrRevoked) {
					t.Error(err)
				}
				<-ctx.Done()
				return returns
			}))
			id := q.enqueue("job", `{"account":"42"}`, asynq.Retention(time.Hour)).ID
			err := <-told
			p, ok := errors.AsType[*asynqlock.Problem](err)
			if !ok || p.Code != asynqlock.CodeLost || p.Verdict != asynqlock.Failed || !errors.Is(err, locker.ErrLost) || errors.Is(err, theirs) != (returns != nil) {
				t.Errorf("asynq's ErrorHandler received %v", err)
			}
			if strings.Contains(err.Error(), busyKey) {
				t.Errorf("the key is shown: %v", err)
			}
			await(t, "it has run again", func() bool { return q.state(id) == "completed after 1 retries" })
		})
	}
}

// For errors that are not Problems of the Guard, the program's own functions decide.
func TestConfigureKeepsWhatItIsGiven(t *testing.T) {
	t.Parallel()
	g := guard(t, lockertest.NewLocker(t, lockertest.NewMemory()))
	plain := g.Configure(asynq.Config{})
	theirs := errors.New("theirs")
	if !plain.IsFailure(theirs) || plain.IsFailure(nil) || plain.ErrorHandler != nil || plain.RetryDelayFunc(0, theirs, job("1")) < time.Second {
		t.Error("asynq's defaults are not kept")
	}
	type key struct{}
	told := 0
	cfg := g.Configure(asynq.Config{
		IsFailure:      func(err error) bool { return err != theirs },
		RetryDelayFunc: func(n int, _ error, _ *asynq.Task) time.Duration { return time.Duration(n) * time.Hour },
		ErrorHandler:   asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { told++ }),
		BaseContext:    func() context.Context { return context.WithValue(context.Background(), key{}, "kept") },
	})
	if cfg.IsFailure(theirs) || !cfg.IsFailure(asynq.ErrLeaseExpired) || cfg.RetryDelayFunc(7, theirs, job("1")) != 7*time.Hour {
		t.Error("their functions are not asked")
	}
	if cfg.ErrorHandler.HandleError(t.Context(), job("1"), theirs); told != 1 || cfg.BaseContext().Value(key{}) != "kept" {
		t.Error("their handler or context is gone")
	}

	// For Problems of the Guard, the Guard decides, even if another middleware has wrapped them.
	for _, tc := range []struct {
		problem *asynqlock.Problem
		failure bool
		calls   int
	}{
		{problem: refuse(t, &refusingLocker{err: locker.ErrBusy}, asynqlock.Snooze(time.Minute))},
		{problem: refuse(t, &refusingLocker{err: locker.ErrBusy}, asynqlock.Drop()), failure: true},
		{problem: refuse(t, &refusingLocker{err: locker.ErrBusy}, asynqlock.Archive()), failure: true, calls: 1},
		{problem: refuse(t, &refusingLocker{err: locker.ErrDone}), failure: true},
		{problem: refuse(t, &refusingLocker{err: locker.ErrUnavailable}), calls: 1},
		{problem: refuse(t, &refusingLocker{err: locker.ErrInvalidKey}), failure: true, calls: 1},
	} {
		err := fmt.Errorf("wrapped: %w", tc.problem)
		if cfg.IsFailure(err) != tc.failure {
			t.Errorf("%v: a failure is %t", err, !tc.failure)
		}
		told = 0
		if cfg.ErrorHandler.HandleError(t.Context(), job("1"), err); told != tc.calls {
			t.Errorf("%v: the handler was called %d times", err, told)
		}
		if got := cfg.RetryDelayFunc(7, err, job("1")); tc.problem.Verdict == asynqlock.Snoozed && got != tc.problem.RetryAfter {
			t.Errorf("%v: it comes again in %v", err, got)
		}
	}
}
