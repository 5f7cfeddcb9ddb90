package asynqlock_test

import (
	"context"
	"errors"
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

// A task that is put off must run in the end, and must not have used a retry by then, whatever asynq would make of it.
func TestATaskThatIsPutOffUsesNoRetry(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fails    bool // its first run fails, before the key becomes busy
		plain    bool // the server was not configured by the Guard
		clones   bool
		opts     []asynq.Option
		problems []string
		id       string // of the run in the end, as far as it differs
		retried  int
	}{
		"with retries left":                      {opts: []asynq.Option{asynq.MaxRetry(3)}, problems: []string{"lock-busy snoozed"}},
		"on the last attempt":                    {fails: true, opts: []asynq.Option{asynq.MaxRetry(1)}, retried: 1},
		"with no retry allowed":                  {opts: []asynq.Option{asynq.MaxRetry(0)}},
		"with no retry allowed, by a clone":      {opts: []asynq.Option{asynq.MaxRetry(0)}, clones: true, problems: []string{"lock-busy snoozed"}, id: "~1"},
		"on the last attempt, by a clone":        {fails: true, opts: []asynq.Option{asynq.MaxRetry(1)}, clones: true, problems: []string{"lock-busy snoozed"}, id: "~1", retried: 1},
		"by a server that is not configured":     {opts: []asynq.Option{asynq.MaxRetry(3)}, plain: true},
		"by a clone, of a server not configured": {opts: []asynq.Option{asynq.MaxRetry(3)}, plain: true, clones: true, problems: []string{"lock-busy snoozed"}, id: "~1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q, store := newQueue(t), lockertest.NewMemory()
			opts := []asynqlock.Option{asynqlock.On("job", asynqlock.Template("account:{payload.account}"), asynqlock.Snooze(time.Second))}
			if tc.clones {
				opts = append(opts, asynqlock.WithClones(q.client, q.inspector))
			}
			g := guardOf(t, lockertest.NewLocker(t, store), opts...)
			other := lockertest.NewLocker(t, store)
			held, ran := make(chan *locker.Lease, 1), make(chan string, 1)
			hold := func() {
				lease, err := other.Acquire(context.Background(), locker.Rule{Key: busyKey})
				if err != nil {
					t.Error(err)
				}
				held <- lease
			}
			var failed atomic.Bool
			failed.Store(!tc.fails)
			if !tc.fails {
				hold()
			}
			see := &seen{}
			mux := asynq.NewServeMux()
			mux.Use(see.middleware, g.Middleware)
			cfg := prompt(asynq.Config{}, q.name)
			if !tc.plain {
				cfg = g.Configure(cfg)
			}
			q.run(mux, cfg, asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
				if failed.CompareAndSwap(false, true) {
					go hold() // takes it as soon as this run has given it up
					await(t, "somebody waits for the key", func() bool {
						info, err := other.Inspect(ctx, busyKey)
						return err == nil && info.Waiters == 1
					})
					return errors.New("the first run fails")
				}
				id, _ := asynq.GetTaskID(ctx)
				ran <- id
				return nil
			}))
			info := q.enqueue("job", `{"account":"42"}`, append(tc.opts, asynq.Retention(time.Hour), asynq.Timeout(time.Minute))...)
			lease := <-held
			if tc.problems == nil {
				await(t, "it waits for its key", func() bool {
					info, err := other.Inspect(t.Context(), busyKey)
					return err == nil && info.Waiters == 1
				})
			} else {
				await(t, "it is put off", func() bool { return len(see.problems()) > 0 })
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			var id string
			select {
			case id = <-ran:
			case <-time.After(patience):
				t.Fatal("it never runs")
			}
			if id != info.ID+tc.id {
				t.Errorf("%s ran, enqueued was %s", id, info.ID)
			}
			if got := strings.Join(see.problems(), ", "); got != strings.Join(tc.problems, ", ") {
				t.Errorf("problems %q, want %q", got, tc.problems)
			}
			await(t, "it is completed", func() bool { return strings.HasPrefix(q.state(id), "completed") })
			end, err := q.inspector.GetTaskInfo(q.name, id)
			if err != nil {
				t.Fatal(err)
			}
			if tc.id == "" && end.Retried != tc.retried || tc.id != "" && end.MaxRetry != info.MaxRetry-tc.retried {
				t.Errorf("%d of %d retries used; enqueued with %d, %d were used before", end.Retried, end.MaxRetry, info.MaxRetry, tc.retried)
			}
			if end.Timeout != time.Minute || end.Retention != time.Hour || string(end.Payload) != `{"account":"42"}` {
				t.Errorf("it is another task now: %+v", end)
			}
			if tc.id != "" && q.state(info.ID) != "gone" {
				t.Errorf("beside its clone it is %s", q.state(info.ID))
			}
		})
	}
}
