package asynqlock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
)

// semaphore returns a Locker of NewSemaphore with n units.
func (q *queue) semaphore(n int) *locker.Engine {
	q.t.Helper()
	l, err := locker.NewSemaphore(q.redis, n, locker.WithPrefix(q.name+":"))
	must(q.t, err)
	q.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			q.t.Error(err)
		}
	})
	return l
}

// At most three tasks of a key run at the same time. Each start and each end of a task wakes the
// next task.
func TestLimitLetsSoManyTasksRunTogether(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	l := q.semaphore(1)
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

// Readers wait for a writer. When it ends, it calls the first reader, and each reader calls the next
// one when it begins. So they run together.
func TestReadersThatWaitForAWriterRunTogether(t *testing.T) {
	t.Parallel()
	const all = 3
	q, together := newQueue(t), make(chan struct{})
	var begun atomic.Int32
	end := sync.OnceFunc(func() { close(together) })
	read := func() { // no reader ends before all have begun
		if begun.Add(1) == all {
			end()
		}
		<-together
	}
	l, err := locker.NewReadWrite(q.redis, locker.WithPrefix(q.name+":"))
	must(t, err)
	t.Cleanup(func() { must(t, l.Close(context.Background())) })
	keys := asynqlock.Template("account:{payload.account}")
	g := guardOf(t, l, asynqlock.WithWaking(q.redis), asynqlock.WithPrefix(q.name+":"), asynqlock.On("job", keys),
		asynqlock.On("job:read", keys, asynqlock.Rule(locker.Rule{Mode: locker.Shared}), asynqlock.Snooze(longest)))
	q.stop(g)
	open := q.gated(g, &record{then: read})
	t.Cleanup(end)
	for range all {
		id := q.enqueue("job:read", numbered(1)).ID
		await(t, "it is put off", func() bool { return q.state(id) == "retry after 0 retries" })
	}
	open()
	select {
	case <-together:
	case <-time.After(promptly):
		t.Errorf("%d readers of %d run together", begun.Load(), all)
	}
}

// The Locker would fill in its own limit of 3 for a rule without a Limit.
func TestWithoutALimitOneTaskOfAKeyRunsOnASemaphore(t *testing.T) {
	t.Parallel()
	q := newQueue(t)
	g := guard(t, q.semaphore(3), asynqlock.Snooze(time.Second))
	work := &record{duration: 300 * time.Millisecond}
	q.workers(g, 10, work)
	const all = 4
	for n := range all {
		q.enqueue("job", numbered(n))
	}
	awaitFor(t, time.Minute, "all have run", func() bool { return len(work.payloads()) == all })
	if work.most != 1 {
		t.Errorf("%d ran at a time, want 1", work.most)
	}
}
