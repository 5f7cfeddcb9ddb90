package recipes

import (
	"context"
	"sync"

	"github.com/latchkit/latchkit/locker"
)

// Job is work for one tenant.
type Job struct {
	Tenant string
	Do     func(ctx context.Context) error
}

// Work does jobs with a number of workers until the channel is closed. Jobs of one tenant run one
// at a time, on all pods together; jobs of different tenants run side by side. failed is called
// with the errors.
func Work(ctx context.Context, l locker.Locker, workers int, jobs <-chan Job, failed func(Job, error)) {
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for job := range jobs {
				if err := locker.Run(ctx, l, locker.Rule{Key: "tenant:" + job.Tenant}, job.Do); err != nil {
					failed(job, err)
				}
			}
		})
	}
	all.Wait()
}
