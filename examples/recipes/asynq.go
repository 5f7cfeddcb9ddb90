package recipes

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/hibiken/asynq"
	"github.com/robfig/cron/v3"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lead"
)

// EnqueueTicks enqueues a task for each tick of a schedule. Every pod calls it, before c.Start. The
// ID of the task is the job and the planned time, so asynq accepts the task from one pod. The
// payload is the planned time, which is the same on all pods, even if their clocks differ.
func EnqueueTicks(c *cron.Cron, client *asynq.Client, job, spec string) error {
	var id cron.EntryID
	var err error
	id, err = c.AddFunc(spec, func() {
		planned := c.Entry(id).Prev.UTC().Format(time.RFC3339)
		for {
			_, err := client.Enqueue(asynq.NewTask(job, []byte(planned)),
				asynq.TaskID(job+"@"+planned), asynq.Retention(24*time.Hour)) // longer than any pod is late
			if err == nil || errors.Is(err, asynq.ErrTaskIDConflict) {
				return // or another pod has enqueued it
			}
			slog.Warn("a tick is not enqueued yet", "job", job, "planned", planned, "error", err)
			time.Sleep(time.Second)
		}
	})
	return err
}

// LeadTicks runs asynq's own scheduler on one pod: the leader. LeadTicks returns when ctx ends.
func LeadTicks(ctx context.Context, l locker.Locker, conn asynq.RedisConnOpt, p Plan) error {
	return lead.Run(ctx, l, locker.Rule{Key: "schedule:" + p.Job}, func(ctx context.Context) error {
		m, err := asynq.NewPeriodicTaskManager(asynq.PeriodicTaskManagerOpts{
			PeriodicTaskConfigProvider: p, RedisConnOpt: conn, SyncInterval: time.Minute,
		})
		if err == nil {
			err = m.Start()
		}
		if err != nil {
			return err
		}
		<-ctx.Done() // this pod does not lead any more
		m.Shutdown()
		return nil
	})
}

// Plan is a job with its schedule, in UTC. Its ticks are at least some minutes apart.
type Plan struct{ Job, Spec string }

// GetConfigs gives the task of the next tick to asynq. A minute after the tick, it gives another.
func (p Plan) GetConfigs() ([]*asynq.PeriodicTaskConfig, error) {
	schedule, err := cron.ParseStandard(p.Spec)
	if err != nil {
		return nil, err
	}
	planned := schedule.Next(time.Now().UTC().Add(-time.Minute)).Format(time.RFC3339)
	once := []asynq.Option{asynq.TaskID(p.Job + "@" + planned), asynq.Retention(24 * time.Hour)}
	return []*asynq.PeriodicTaskConfig{{Cronspec: p.Spec, Task: asynq.NewTask(p.Job, []byte(planned)), Opts: once}}, nil
}
