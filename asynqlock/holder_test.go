package asynqlock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/latchkit/latchkit/asynqlock"
	"github.com/latchkit/latchkit/locker"
)

// The Locker's error names the holder, for operators of the locks. asynq keeps the text of a
// Problem beside the task, where more people read it.
func TestTheErrorOfATaskDoesNotNameTheHolder(t *testing.T) {
	const holder = "report@pod-7f9c:1"
	for name, policy := range map[string]asynqlock.Policy{"Archive": asynqlock.Archive(), "Snooze": asynqlock.Snooze(time.Minute)} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(t)
			named := locker.WithMetadata(func(context.Context) string { return holder })
			lease, err := q.locker(named).Acquire(t.Context(), locker.Rule{Key: "account:42"})
			must(t, err)
			g := guard(t, q.locker(named), policy)
			see := q.serve(g, asynq.Config{}, newWork())
			info := q.enqueue("job", `{"account":"42"}`, asynq.MaxRetry(3))
			await(t, "the task is refused", func() bool { return len(see.problems()) > 0 })
			var task *asynq.TaskInfo
			await(t, "asynq has kept the error", func() bool {
				task, err = q.inspector.GetTaskInfo(q.name, info.ID)
				return err == nil && task.LastErr != ""
			})
			see.mu.Lock()
			refusal := see.errs[0]
			see.mu.Unlock()
			problem, ok := refusal.(*asynqlock.Problem) //nolint:errorlint // the middleware returns it as it is
			if !ok || !strings.Contains(problem.Unwrap()[0].Error(), holder) {
				t.Fatalf("the error is %v, want a busy lock, whose error names the holder", refusal)
			}
			for _, shown := range []string{task.LastErr, refusal.Error()} {
				if strings.Contains(shown, "report") || strings.Contains(shown, "7f9c") || !strings.Contains(shown, asynqlock.CodeBusy) {
					t.Errorf("the text is %q", shown)
				}
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
