package recipes

import (
	"context"
	"errors"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// Tick does a job at most once for each tick of a schedule, on the pod that calls Tick first.
// Every pod calls Tick at every tick. The parameter planned is the planned time of the tick.
// This time is the same on all pods, even if their clocks differ.
func Tick(ctx context.Context, l locker.Locker, job string, planned time.Time, do func(context.Context) error) error {
	err := locker.Run(ctx, l, locker.Rule{
		Key:     "cron:" + job + ":" + planned.UTC().Format(time.RFC3339),
		Name:    "cron:" + job,
		Wait:    locker.NoWait,
		OnceFor: 24 * time.Hour, // longer than any pod is late
	}, do)
	if errors.Is(err, locker.ErrBusy) || errors.Is(err, locker.ErrDone) {
		return nil // another pod does the job, or has done it
	}
	return err
}
