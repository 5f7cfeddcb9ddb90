package asynqlock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/bsm/redislock"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
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
