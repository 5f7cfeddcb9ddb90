package asynqlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
)

// When the time of a task is over, asynq ends the task's context and starts the task again. asynq
// does not wait for the first handler.
func TestATaskThatRanOutOfTimeIsNotRunBesideItself(t *testing.T) {
	t.Parallel()
	q, work := newQueue(t), &record{gate: make(chan struct{})}
	end := sync.OnceFunc(func() { close(work.gate) })
	see := q.serve(guard(t, q.locker(), asynqlock.Snooze(time.Second)), asynq.Config{}, work)
	t.Cleanup(end)
	q.enqueue("job", `{"account":"42"}`, asynq.Timeout(time.Second))
	await(t, "asynq delivers it again", func() bool { return len(see.problems()) > 0 })
	if n := len(work.payloads()); n != 1 {
		t.Errorf("%d runs before the first has returned", n)
	}
	end()
	await(t, "it has run again", func() bool { return len(work.payloads()) > 1 })
	if work.most != 1 {
		t.Errorf("%d runs at a time; want one after the other", work.most)
	}
}

// A server that stops requeues its task before the task's handler has returned. The next server
// must not regard the task as a duplicate, because the work is not done if the first handler
// fails.
func TestATaskThatWasGivenBackIsNotDropped(t *testing.T) {
	t.Parallel()
	for name, retries := range map[string]int{"with retries left": 3, "without": 0} {
		t.Run(name, func(t *testing.T) { t.Parallel(); testGivenBack(t, retries) })
	}
}

// serveUntilGivenBack starts a server whose Shutdown gives a task that still runs back to the
// queue. The handler closes begun, and fails when end is closed.
func (q *queue) serveUntilGivenBack(g *asynqlock.Guard, begun, end chan struct{}) *asynq.Server {
	q.t.Helper()
	return q.stoppable(g, time.Millisecond, asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		close(begun)
		<-end
		return errors.New("it fails after all")
	}))
}

func testGivenBack(t *testing.T, retries int) {
	t.Helper()
	q, begun, end := newQueue(t), make(chan struct{}), make(chan struct{})
	g := guard(t, q.locker(), asynqlock.Drop(), asynqlock.Snooze(time.Second))
	stopping := q.serveUntilGivenBack(g, begun, end)
	id := q.enqueue("job", `{"account":"42"}`, asynq.Retention(time.Hour), asynq.MaxRetry(retries)).ID
	<-begun
	stopping.Shutdown()
	see := q.serve(guard(t, q.locker(), asynqlock.Drop(), asynqlock.Snooze(time.Second)), asynq.Config{},
		asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil }))
	other := q.locker()
	if retries == 0 {
		await(t, "it waits for its key, in its worker", func() bool {
			info, err := other.Inspect(t.Context(), busyKey)
			return err == nil && info.Waiters == 1
		})
	} else {
		await(t, "it is delivered again", func() bool { return len(see.problems()) > 0 })
		if got := see.problems()[0]; got != "already-running snoozed" {
			t.Errorf("%s, want it to be put off", got)
		}
	}
	close(end)
	await(t, "it is done", func() bool { return q.state(id) == "completed after 0 retries" })
}
