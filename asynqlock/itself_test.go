package asynqlock_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
	"github.com/latchkit/latchkit/locker/polling"
)

// A worker that dies leaves two leases: one of the key, and one of the task's own ID. If the lease
// of the key lasted longer, the next worker could regard the task as a duplicate of itself.
func TestATasksOwnLockOutlastsThatOfItsKey(t *testing.T) {
	t.Parallel()
	for name, policies := range map[string][]asynqlock.Policy{
		"default":     {asynqlock.Drop(), asynqlock.AtLeast(time.Second)},
		"TTL":         {asynqlock.Archive(), asynqlock.AtLeast(time.Second), asynqlock.TTL(5 * time.Second)},
		"for an hour": {asynqlock.Drop(), asynqlock.AtLeast(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, w := newQueue(t), newWork()
			q.serve(guard(t, q.locker(locker.WithTTL(6*time.Second)), policies...), asynq.Config{}, w)
			t.Cleanup(func() { close(w.end) })
			id := q.enqueue("job", `{"account":"42"}`).ID
			next(t, w)
			look := time.NewTicker(20 * time.Millisecond)
			defer look.Stop()
			for range 250 { // long enough for several renewals of both leases
				<-look.C
				var own, account *redis.DurationCmd
				_, err := q.redis.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
					own, account = p.PTTL(t.Context(), q.name+":asynq-task:"+q.name+":"+id), p.PTTL(t.Context(), q.name+":account:42")
					return nil
				})
				if err != nil || account.Val() <= 0 || own.Val() <= account.Val() {
					t.Fatalf("the task's own lock is there for %v, its key for %v (%v)", own.Val(), account.Val(), err)
				}
			}
			w.end <- struct{}{}
			await(t, "it is done", func() bool { return q.state(id) == "gone" })
		})
	}
}

// Without AtLeast, the metadata of the lease names its task, so no second lock is needed.
func TestALeaseNamesItsTask(t *testing.T) {
	t.Parallel()
	q, w, store := newQueue(t), newWork(), lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	q.serve(guard(t, l, asynqlock.Drop(), asynqlock.Once(time.Hour)), asynq.Config{}, w)
	id := q.enqueue("job", `{"account":"42"}`).ID
	next(t, w)
	info, err := l.Inspect(t.Context(), busyKey)
	if err != nil || info.Metadata != "asynq-task:"+q.name+":"+id {
		t.Errorf("the lease has the metadata %q, %v", info.Metadata, err)
	}
	w.end <- struct{}{}
	await(t, "it is done", func() bool { return q.state(id) == "gone" })
	if n := store.Calls(locker.OpAcquire); n != 1 {
		t.Errorf("%d acquires for one task", n)
	}
}

// A Locker over redislock shows no metadata. After the first busy key of this Locker, each task
// takes a second lock, for its own ID.
func TestATaskIsToldFromItsDuplicatesByALockerThatShowsNoHolder(t *testing.T) {
	t.Parallel()
	q, w := newQueue(t), newWork()
	l, err := polling.New(redislock.New(q.redis), locker.WithPrefix(q.name+":"))
	must(t, err)
	t.Cleanup(func() { must(t, l.Close(context.Background())) })
	see := q.serve(guard(t, l, asynqlock.Drop(), asynqlock.Snooze(time.Second)), asynq.Config{}, w)
	q.enqueue("job", `{"account":"42"}`)
	next(t, w)
	first := q.enqueue("job", `{"account":"42"}`).ID // the Guard does not know yet that the Locker shows no metadata
	await(t, "it is put off", func() bool { return slices.Contains(see.problems(), "already-running snoozed") })
	second := q.enqueue("job", `{"account":"42"}`).ID
	await(t, "it is dropped", func() bool { return q.state(second) == "gone" })
	w.end <- struct{}{}
	next(t, w)
	w.end <- struct{}{}
	await(t, "nothing is left", func() bool { return q.state(first) == "gone" })
}

// With AtLeast, a task may find that its own earlier run has left its key busy. This can happen
// even if asynq did not count the retry.
func TestATaskIsNotDroppedForAKeyThatItsOwnRunHasLeftBusy(t *testing.T) {
	t.Parallel()
	q, store := newQueue(t), lockertest.NewMemory()
	var runs atomic.Int32
	cfg := asynq.Config{IsFailure: func(error) bool { return false }}
	see := q.serve(guard(t, lockertest.NewLocker(t, store), asynqlock.AtLeast(3*time.Second), asynqlock.Drop(), asynqlock.Snooze(time.Second)), cfg,
		asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
			if runs.Add(1) == 1 {
				return errors.New("come again")
			}
			return nil
		}))
	id := q.enqueue("job", `{"account":"42"}`, asynq.Retention(time.Hour)).ID
	await(t, "it has run again", func() bool { return q.state(id) == "completed after 0 retries" })
	if all := see.problems(); len(all) == 0 || slices.Contains(all, "lock-busy dropped") {
		t.Errorf("problems %q, want it to be put off", all)
	}
}
