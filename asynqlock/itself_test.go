package asynqlock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/key"
	"github.com/latchkit/latchkit/locker/polling"
)

// If asynq delivers a task again after its server stopped, the task must be recognised by the lease
// of its earlier run. New refuses rules whose leases cannot name a task.
func TestARuleIsRefusedThatCouldDiscardATaskBecauseOfItsOwnEarlierRun(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	single := q.locker()
	poll, err := polling.New(redislock.New(q.redis), locker.WithPrefix(q.name+":"))
	must(t, err)
	t.Cleanup(func() { must(t, poll.Close(context.Background())) })
	readers, err := locker.NewReadWrite(q.redis, locker.WithPrefix(q.name+":"))
	must(t, err)
	t.Cleanup(func() { must(t, readers.Close(context.Background())) })
	permits, err := locker.NewSemaphore(q.redis, 1, locker.WithPrefix(q.name+":"))
	must(t, err)
	t.Cleanup(func() { must(t, permits.Close(context.Background())) })
	for name, tc := range map[string]struct {
		l      locker.Locker
		policy asynqlock.Policy
		advice string // "": the rule is accepted
	}{
		"a key that is kept":  {single, asynqlock.Rule(locker.Rule{KeepFor: time.Second}), "use Once"},
		"readers":             {readers, asynqlock.Rule(locker.Rule{Mode: locker.Shared}), "use Snooze"},
		"a limit":             {permits, asynqlock.Rule(locker.Rule{Limit: 2}), "use Snooze"},
		"a semaphore":         {permits, asynqlock.Wait(time.Second), "use Snooze"},
		"polling":             {poll, asynqlock.Wait(time.Second), "locker.New"},
		"one holder of a key": {single, asynqlock.Once(time.Hour), ""},
	} {
		for _, discard := range []asynqlock.Policy{asynqlock.Drop(), asynqlock.Archive()} {
			_, err := asynqlock.New(tc.l, asynqlock.On("job", asynqlock.Template("account:{payload.account}"), tc.policy, discard))
			if tc.advice == "" && err != nil || tc.advice != "" && (err == nil || !strings.Contains(err.Error(), tc.advice)) {
				t.Errorf("%s: %v, want advice %q", name, err, tc.advice)
			}
		}
		if _, err := asynqlock.New(tc.l, asynqlock.On("job", asynqlock.Template("account:{payload.account}"), tc.policy)); err != nil {
			t.Errorf("%s, put off: %v", name, err)
		}
	}
}

// A task that cannot be put off stays in its worker when it meets its own earlier run. Then it runs
// in another attempt, whose lease must name the task, too: if the server stops during this run, the
// task meets this lease.
func TestATaskThatHasStayedInItsWorkerIsNotDroppedBecauseOfItsOwnRun(t *testing.T) {
	t.Parallel()
	q, begun, end := newQueue(t), make(chan struct{}), make(chan struct{})
	waits := func(l *locker.Engine) func() bool {
		return func() bool {
			info, err := l.Inspect(t.Context(), busyKey)
			return err == nil && info.Waiters == 1
		}
	}
	other := q.locker()
	lease, err := other.Acquire(t.Context(), locker.Rule{Key: busyKey, Metadata: key.Of("asynq-task", q.name, "once")})
	must(t, err)
	stopping := q.serveUntilGivenBack(guard(t, q.locker(), asynqlock.Drop()), begun, end)
	id := q.enqueue("job", `{"account":"42"}`, asynq.TaskID("once"), asynq.Retention(time.Hour), asynq.MaxRetry(0)).ID
	await(t, "it waits for its key, in its worker", waits(other))
	must(t, lease.Release(t.Context()))
	<-begun
	stopping.Shutdown()
	q.serve(guard(t, q.locker(), asynqlock.Drop()), asynq.Config{}, asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	await(t, "it waits for its own earlier run, or is dropped", func() bool { return waits(other)() || q.state(id) == "gone" })
	close(end)
	await(t, "it is done", func() bool { return q.state(id) == "completed after 0 retries" })
}
