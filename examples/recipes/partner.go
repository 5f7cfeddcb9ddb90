package recipes

import (
	"context"
	"time"

	"github.com/latchkit/latchkit/locker"
)

// AtATime calls a partner when fewer than n calls to the partner are under way, in all processes
// together. permits is a Locker of locker.NewSemaphore(client, n). Callers wait in order.
func AtATime(ctx context.Context, permits locker.Locker, call func(context.Context) error) error {
	return locker.Run(ctx, permits, locker.Rule{Key: "partner"}, call)
}

// ASecond calls a partner when fewer than n permits were granted in the last second, in all
// processes together. A call that is delayed after its grant can meet the next ones, so leave room
// if the partner counts arrivals strictly. A permit stays taken for a second, even if its call was
// quick. A call that takes longer keeps its permit, so ASecond limits the calls under way, too.
func ASecond(ctx context.Context, permits locker.Locker, call func(context.Context) error) error {
	return locker.Run(ctx, permits, locker.Rule{Key: "partner:rate", KeepFor: time.Second}, call)
}
