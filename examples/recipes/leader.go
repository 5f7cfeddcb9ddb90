package recipes

import (
	"context"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lead"
)

// Relay runs a loop on one pod. The other pods wait, and one of them continues when the leader
// stops or dies. Relay returns when ctx ends. The function step does one piece of work, and
// stores the fence with its data, so that the data can refuse a stale leader.
func Relay(ctx context.Context, l locker.Locker, step func(ctx context.Context, fence uint64) error) error {
	return lead.Run(ctx, l, locker.Rule{Key: "leader:outbox"}, func(ctx context.Context) error {
		lease, _ := locker.FromContext(ctx)
		for ctx.Err() == nil { // ctx ends when this pod does not lead any more
			if err := step(ctx, lease.Fence()); err != nil {
				return err
			}
		}
		return nil
	})
}
