// Package locker locks things across processes, on Redis.
//
// A [Rule] says what to guard. A [Locker] turns a Rule into a [Lease]. [Run] holds the lease around a function, and
// that function's context ends, with a cause, the moment the lease does:
//
//	l, err := locker.NewSingle(redis.NewClient(&redis.Options{Addr: "localhost:6379"}))
//	…
//	err = locker.Run(ctx, l, locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
//		return ship(ctx, 42) // ctx ends if the lock is lost
//	})
//
// A lease is renewed while it is held, its owner is told when it is lost, and every grant carries a fence
// ([Lease.Fence]): a number that only grows, by which a database can refuse a holder that was paused for too long.
//
// Without such a check at the data, a lease on Redis is an efficiency device: exclusion holds while pauses of the
// holder and the loss of data on the server stay inside the lease's time.
//
// Whoever must wait does so in a queue on the server, and is told when its turn has come; callers of one process may pass
// a lease on among themselves, each with a fence of its own. [WithFair], [WithHandoffs] and [WithoutQueue] change that.
// A lock is a plain key on Redis, so other libraries that set the same key exclude it, and are excluded and waited for.
//
// An [Engine] does the waiting, renewing, losing and observing, once for all kinds of lock; a [Store] makes the few
// atomic steps on the server. Package lockertest has a Store in memory and the laws that every Store obeys.
package locker
