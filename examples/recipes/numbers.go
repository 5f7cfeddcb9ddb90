package recipes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/latchkit/latchkit/locker"
)

// Numbered runs do with a number from 0 to n-1 that no other call has at the same time, on all pods
// together: a licence, a port, the number of a worker. permits is a Locker of NewSemaphore with n
// units. It makes callers wait in order, and a caller that has a permit finds a number without an
// owner. The number is a lock, so its fence, which is in do's context, grows with each owner, and
// the data can refuse an earlier one.
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
		// The numbers of pods that died are taken a moment longer than their permits.
		number := first
		return locker.Run(ctx, l, locker.Rule{Key: fmt.Sprint(pool, ":", number)}, func(ctx context.Context) error {
			return do(ctx, number)
		})
	})
}
