package asynqlock_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// When the time of a task is over, asynq ends the task's context and starts the task again. asynq
// does not wait for the first handler.
func TestATaskThatRanOutOfTimeIsNotRunBesideItself(t *testing.T) {
	t.Parallel()
	for name, guarded := range map[string]bool{"guarded": true, "not guarded": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, w := newQueue(t), newWork()
			var g *asynqlock.Guard
			if guarded {
				g = guard(t, q.locker(), asynqlock.Snooze(time.Second))
			}
			see := q.serve(g, asynq.Config{}, w)
			t.Cleanup(func() { close(w.end) }) // ends every run, because on a slow machine asynq may start more runs than the test expects
			q.enqueue("job", `{"account":"42"}`, asynq.Timeout(time.Second))
			next(t, w)
			if !guarded {
				next(t, w)
				if _, most := w.counts(); most != 2 {
					t.Errorf("%d runs at a time, want 2: without that there is nothing to guard against", most)
				}
				w.end <- struct{}{}
				w.end <- struct{}{}
				return
			}
			await(t, "asynq delivers it again", func() bool { return len(see.problems()) > 0 })
			if runs, _ := w.counts(); runs != 1 {
				t.Errorf("%d runs before the first has returned", runs)
			}
			w.end <- struct{}{}
			next(t, w)
			w.end <- struct{}{}
			if runs, most := w.counts(); runs < 2 || most != 1 {
				t.Errorf("%d runs, %d at a time; want one after the other", runs, most)
			}
		})
	}
}

// asynq's own lease of a task lasts for 30 s. If a server does not renew it in time, asynq gives
// the task to another server, while the first server's handler still runs.
func TestATaskWhoseServerLostItIsNotRunBesideItself(t *testing.T) {
	t.Parallel()
	for name, guarded := range map[string]bool{"guarded": true, "not guarded": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, w := newQueue(t), newWork()
			fresh := func() *asynqlock.Guard {
				if !guarded {
					return nil
				}
				return guard(t, q.locker(), asynqlock.Once(time.Hour), asynqlock.Drop(), asynqlock.Snooze(time.Second))
			}
			first := q.serve(fresh(), asynq.Config{}, w)
			id := q.enqueue("job", `{"account":"42"}`).ID
			next(t, w)
			expireLease(t, q.redis, q.name, id)
			second := q.serve(fresh(), asynq.Config{}, w)
			// The Problems of both servers count, because either server may get the task.
			problems := func() []string { return append(first.problems(), second.problems()...) }
			if !guarded {
				next(t, w)
				if _, most := w.counts(); most != 2 {
					t.Errorf("%d runs at a time, want 2: without that there is nothing to guard against", most)
				}
				w.end <- struct{}{}
				w.end <- struct{}{}
				return
			}
			await(t, "asynq delivers it again, and it is put off", func() bool { return len(problems()) > 0 })
			// The task is no duplicate, because the lost lease has used a retry.
			if got := problems()[0]; got != "lock-busy snoozed" {
				t.Errorf("%s, want it to be put off", got)
			}
			w.end <- struct{}{}
			await(t, "it is found to be done", func() bool { return slices.Contains(problems(), "already-done dropped") })
			if runs, most := w.counts(); runs != 1 || most != 1 {
				t.Errorf("%d runs, %d at a time, want one", runs, most)
			}
		})
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

// A server that stops requeues the tasks that wait in it for their keys. A requeued task has not
// run, and was not refused.
func TestATaskThatWaitsWhileItsServerStopsIsKept(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policies []asynqlock.Policy
		retries  int
	}{
		"Wait and Drop":             {[]asynqlock.Policy{asynqlock.Wait(time.Minute), asynqlock.Drop()}, 3},
		"Snooze, without a retry":   {[]asynqlock.Policy{asynqlock.Snooze(time.Second)}, 0},
		"Wait and Archive, no more": {[]asynqlock.Policy{asynqlock.Wait(time.Minute), asynqlock.Archive()}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, store := newQueue(t), lockertest.NewMemory()
			holder := lockertest.NewLocker(t, store)
			lease, err := holder.Acquire(t.Context(), locker.Rule{Key: busyKey})
			must(t, err)
			w := newWork()
			stopping := q.stoppable(guard(t, lockertest.NewLocker(t, store), tc.policies...), time.Millisecond, w)
			id := q.enqueue("job", `{"account":"42"}`, asynq.MaxRetry(tc.retries), asynq.Retention(time.Hour)).ID
			await(t, "it waits", func() bool {
				info, err := holder.Inspect(t.Context(), busyKey)
				return err == nil && info.Waiters == 1
			})
			stopping.Shutdown()
			if got := q.state(id); got != "pending after 0 retries" {
				t.Errorf("it is %s", got)
			}
			must(t, lease.Release(t.Context()))
			w.end <- struct{}{}
			q.serve(guard(t, lockertest.NewLocker(t, store), tc.policies...), asynq.Config{}, w)
			await(t, "it is done", func() bool { return q.state(id) == "completed after 0 retries" })
			if runs, _ := w.counts(); runs != 1 {
				t.Errorf("it ran %d times", runs)
			}
		})
	}
}

// expireLease makes asynq's lease of a task look as if it had ended a minute ago. Other servers of
// asynq take a task whose lease ended 30 s ago. Each server looks for such tasks when it starts,
// and then once a minute.
func expireLease(t testing.TB, c *redis.Client, queue, id string) {
	t.Helper()
	lease := redis.Z{Score: float64(time.Now().Add(-time.Minute).Unix()), Member: id}
	if n, err := c.ZAddArgs(t.Context(), "asynq:{"+queue+"}:lease", redis.ZAddArgs{XX: true, Ch: true, Members: []redis.Z{lease}}).Result(); n != 1 {
		t.Fatalf("asynq keeps no lease of the task %s (%v): look for where it does", id, err)
	}
}
