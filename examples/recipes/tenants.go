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

// Work does jobs with a number of workers until the channel is closed. Of the jobs of one
// tenant, only one job runs at a time on all pods together. Jobs of different tenants can run
// at the same time. Work calls the function failed for each job that fails.
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
