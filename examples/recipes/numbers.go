package recipes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/latchkit/latchkit/locker"
)

// Numbered calls do with a number from 0 to n-1. No other call on any pod has this number at the
// same time. The number can stand for a licence, a port or a worker. The parameter permits is a
// Locker of NewSemaphore with n units. At this semaphore, callers wait in order, and a caller
// that has a permit finds a number without an owner. Each number is the key of a lock. The
// lease of this lock is in the context of do, and its fence grows with each owner of the
// number. So the data can refuse an earlier owner.
func Numbered(ctx context.Context, permits, l locker.Locker, pool string, n int, do func(ctx context.Context, number int) error) error {
	return locker.Run(ctx, permits, locker.Rule{Key: pool, Limit: n}, func(ctx context.Context) error {
		first := rand.IntN(n)
		for i := range n {
			number := (first + i) % n
			err := locker.Run(ctx, l, locker.Rule{Key: fmt.Sprint(pool, ":", number), Wait: locker.NoWait}, func(ctx context.Context) error {
				return do(ctx, number)
			})
			if !errors.Is(err, locker.ErrBusy) {
				return err
			}
		}
		// When a pod dies, its number becomes free a moment later than its permit.
		number := first
		return locker.Run(ctx, l, locker.Rule{Key: fmt.Sprint(pool, ":", number)}, func(ctx context.Context) error {
			return do(ctx, number)
		})
	})
}
