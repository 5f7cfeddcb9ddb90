package asynqlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
)

// At most three tasks of a key run at the same time. Each start and each end of a task wakes the
// next task.
func TestLimitLetsSoManyTasksRunTogether(t *testing.T) {
	q := newQueue(t)
	l, err := locker.NewSemaphore(q.redis, 1, locker.WithPrefix(q.name+":"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	g := guardOf(t, l, asynqlock.WithWaking(q.redis), asynqlock.WithPrefix(q.name+":"),
		asynqlock.On("job", asynqlock.Template("account:{payload.account}"), asynqlock.Rule(locker.Rule{Limit: 3})))
	q.stop(g)
	work := &record{duration: 100 * time.Millisecond}
	q.workers(g, 10, work)
	const all = 24
	began := time.Now()
	for n := range all {
		q.enqueue("job", numbered(n))
	}
	awaitFor(t, time.Minute, "all have run", func() bool { return len(work.payloads()) == all })
	t.Logf("%d tasks of 100 ms, 3 at a time, took %v", all, time.Since(began))
	if work.most != 3 {
		t.Errorf("%d ran at a time, want 3", work.most)
	}
}
