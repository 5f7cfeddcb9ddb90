package asynqlock_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

// A task with a Deadline in 9 s used to be put off for 12 s. So it never ran, and asynq used up its
// retries.
func TestATaskIsNotPutOffBeyondItsDeadline(t *testing.T) {
	t.Parallel()
	q, store := newQueue(t), lockertest.NewMemory()
	other, err := lockertest.NewLocker(t, store).Acquire(t.Context(), locker.Rule{Key: busyKey})
	must(t, err)
	g := guard(t, lockertest.NewLocker(t, store), asynqlock.Snooze(time.Hour))
	q.stop(g)
	ran := make(chan struct{})
	mux, see := asynq.NewServeMux(), &errorRecorder{}
	mux.Use(see.middleware, g.Middleware)
	q.run(mux, g.Configure(asynq.Config{Logger: quiet{}, Queues: map[string]int{q.name: 1}}), asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		close(ran)
		return nil
	}))
	began := time.Now()
	deadline := began.Add(20 * time.Second)
	q.enqueue("job", `{"account":"42"}`, asynq.Deadline(deadline), asynq.MaxRetry(1))
	await(t, "it is put off", func() bool { return len(see.problems()) > 0 })
	see.mu.Lock()
	p, _ := errors.AsType[*asynqlock.Problem](see.errs[0])
	see.mu.Unlock()
	if p.Verdict != asynqlock.Snoozed || began.Add(p.RetryAfter).After(deadline.Add(-5*time.Second)) {
		t.Errorf("it was %s for %v, and its deadline is in 20s", p.Verdict, p.RetryAfter)
	}
	must(t, other.Release(t.Context()))
	select {
	case <-ran:
	case <-time.After(time.Until(deadline)):
		t.Error("it has not run by its deadline")
	}
}

// There is too little time before the deadline to put the task off. So the task waits for its key
// in the worker.
func TestATaskWhoseDeadlineIsNearWaitsInItsWorker(t *testing.T) {
	t.Parallel()
	q, store := newQueue(t), lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	other, err := lockertest.NewLocker(t, store).Acquire(t.Context(), locker.Rule{Key: busyKey})
	must(t, err)
	g := guardOf(t, l, asynqlock.WithWaking(q.redis), asynqlock.WithPrefix(q.name+":"),
		asynqlock.On("job", asynqlock.Template("account:{payload.account}"), asynqlock.Snooze(longest)))
	q.stop(g)
	ran := make(chan struct{})
	q.serve(g, asynq.Config{}, asynq.HandlerFunc(func(context.Context, *asynq.Task) error { close(ran); return nil }))
	// A pause lasts at least 1 s, and asynq may round it up by 1 s. The same time as the pause must
	// be left for the work. So this deadline is too near to put the task off, at the latest after
	// one pause.
	deadline := time.Now().Add(3500 * time.Millisecond).Truncate(time.Second)
	q.enqueue("job", `{"account":"42"}`, asynq.Deadline(deadline))
	await(t, "it waits in the key's queue, or its time is over", func() bool {
		info, err := l.Inspect(t.Context(), busyKey)
		return err == nil && info.Waiters > 0 || time.Now().After(deadline)
	})
	must(t, other.Release(t.Context()))
	select {
	case <-ran:
	case <-time.After(patience):
		t.Error("it never ran")
	}
}

// asynq rounds the end of a Timeout down to whole seconds if the task has a Deadline too. Without
// WithWaking, the Guard cannot distinguish this end from a Deadline, so the task waits in its
// worker. This Timeout is too short to put the task off before it. So asynq used to count a retry
// at each delivery, and archived the task.
func TestAShortTimeoutBesideADeadlineUsesNoRetry(t *testing.T) {
	t.Parallel()
	q, store := newQueue(t), lockertest.NewMemory()
	other, err := lockertest.NewLocker(t, store).Acquire(t.Context(), locker.Rule{Key: busyKey})
	must(t, err)
	work := &record{}
	see := q.serve(guard(t, lockertest.NewLocker(t, store), asynqlock.Snooze(longest)), asynq.Config{}, work)
	id := q.enqueue("job", `{"account":"42"}`, asynq.Timeout(3*time.Second), asynq.Deadline(time.Now().Add(24*time.Hour)), asynq.MaxRetry(3)).ID
	await(t, "its time is nearly over", func() bool { return len(see.problems()) > 0 })
	if got := see.problems()[0]; got != "lock-busy snoozed" {
		t.Errorf("the task is %s, want it to be put off", got)
	}
	await(t, "it is put off", func() bool { return q.state(id) == "retry after 0 retries" })
	must(t, other.Release(t.Context()))
	await(t, "it has run", func() bool { return len(work.payloads()) == 1 })
}

// Without Configure, a task that waits keeps its worker busy. The Guard must log this mistake.
func TestAServerThatIsNotConfiguredIsLogged(t *testing.T) { // not parallel: it sets slog's default
	q := newQueue(t)
	var mu sync.Mutex
	var text bytes.Buffer
	before := slog.Default()
	defer slog.SetDefault(before)
	slog.SetDefault(slog.New(slog.NewTextHandler(writer(func(b []byte) {
		mu.Lock()
		defer mu.Unlock()
		text.Write(b)
	}), nil)))
	g := guardOf(t, lockertest.NewLocker(t, lockertest.NewMemory()), asynqlock.On("job", asynqlock.ByTaskID()))
	w := &record{}
	mux := asynq.NewServeMux()
	mux.Use(g.Middleware)
	q.run(mux, promptConfig(asynq.Config{}, q.name), w)
	for n := range 3 {
		q.enqueue("job", numbered(n))
	}
	await(t, "all have run", func() bool { return len(w.payloads()) == 3 })
	mu.Lock()
	defer mu.Unlock()
	if strings.Count(text.String(), "guard.Configure(") != 1 {
		t.Errorf("logged %q, want one line that says what to do", text.String())
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

// At the shutdown of a server, a task may do nothing but wait for its key. Shutdown used to wait
// for such a task for the whole ShutdownTimeout.
func TestAServerDoesNotWaitForATaskThatWaits(t *testing.T) {
	t.Parallel()
	q, store := newQueue(t), lockertest.NewMemory()
	l := lockertest.NewLocker(t, store)
	other, err := lockertest.NewLocker(t, store).Acquire(t.Context(), locker.Rule{Key: busyKey})
	must(t, err)
	g := guard(t, l, asynqlock.Wait(time.Hour))
	mux := asynq.NewServeMux()
	mux.Use(g.Middleware)
	work := &record{}
	mux.Handle("job", work)
	cfg := promptConfig(asynq.Config{}, q.name)
	cfg.ShutdownTimeout = time.Hour
	server := asynq.NewServerFromRedisClient(q.redis, g.Configure(cfg))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx, server, mux) }()
	id := q.enqueue("job", `{"account":"42"}`).ID
	await(t, "it waits", func() bool {
		info, err := l.Inspect(t.Context(), busyKey)
		return err == nil && info.Waiters == 1
	})
	stop()
	select {
	case err := <-ended:
		must(t, err)
	case <-time.After(patience):
		t.Fatal("the server waits for a task that waits")
	}
	if got := q.state(id); got != "retry after 0 retries" || len(work.payloads()) != 0 {
		t.Errorf("the task is %s; want it to be put off", got)
	}
	must(t, other.Release(t.Context()))
}
