package asynqlock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/latchkit/latchkit/internal/exclusive"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/key"
)

// A rule that drops or archives tasks must distinguish a task from its duplicates. When a server
// stops while a handler runs, asynq delivers the task again without counting a retry. Then the key
// may be busy with the earlier run of that task, or with the lease that the run left behind. So the
// metadata of the lease names its task. That works only with leases that have one holder, on a
// Locker that shows the metadata, and if the key is free after the run; [New] refuses other rules.

// check returns an error if l can never grant the locks of r, or if tasks that r drops or archives
// could be lost because of their own earlier run.
func (r *rule) check(l locker.Locker) error {
	if err := locker.Check(l, r.lock); err != nil {
		return fmt.Errorf("asynqlock: On(%q): %w", r.pattern, err)
	}
	if r.busy == Snoozed {
		return nil
	}
	reason, advice := unnamed(r.lock), "use Snooze"
	i, shows := l.(inspector)
	switch {
	case reason == "KeepFor":
		advice = "use Once to suppress duplicates of finished work, or Snooze"
	case reason != "":
	case exclusive.CountsUnits(l):
		reason = "a Locker of NewSemaphore"
	case !shows || showsNothing(i):
		reason, advice = "this Locker, which cannot show the holder of a key", "use Snooze, or a Locker such as that of locker.New"
	default:
		return nil
	}
	return fmt.Errorf("asynqlock: On(%q): Drop and Archive cannot be combined with %s: a task whose server stopped comes again, and would be discarded because of its own earlier run; %s",
		r.pattern, reason, advice)
}

// unnamed returns the field of lock because of which its lease cannot name a task, or "".
func unnamed(lock locker.Rule) string {
	switch {
	case lock.KeepFor > 0:
		return "KeepFor"
	case lock.Mode == locker.Shared:
		return "Mode Shared"
	case lock.Limit > 0:
		return "a Limit"
	case lock.Metadata != "":
		return "Metadata"
	}
	return ""
}

// inspector is a Locker that can show the holder of a key.
type inspector interface {
	Inspect(ctx context.Context, key string) (locker.Info, error)
}

// showsNothing reports whether the Locker cannot inspect a key. The context has ended, so no server
// is asked.
func showsNothing(i inspector) bool {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := i.Inspect(ctx, "key")
	return errors.Is(err, locker.ErrUnsupported)
}

// runNamed runs the handler under a lease whose metadata names the task.
func (j *job) runNamed(ctx context.Context) error {
	name, err := key.Make("asynq-task", j.queue, j.taskID)
	if err != nil {
		return err
	}
	// A Locker keeps 256 bytes. If two tasks have the same beginning, the second one is put off.
	name = strings.ToValidUTF8(name[:min(len(name), 256)], "")
	j.lock.Metadata = name
	err = j.run(ctx)
	if j.ran || !errors.Is(err, locker.ErrBusy) {
		return err
	}
	if e, ok := errors.AsType[*locker.Error](err); ok {
		j.overlaps = e.HolderMetadata == name
		j.ranBefore = j.ranBefore || j.overlaps
	}
	return err
}
