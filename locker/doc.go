// Package locker provides locks between processes and machines, on Redis.
//
// A [Rule] says what to guard. A [Locker] turns a Rule into a [Lease]. [Run] holds the lease around
// a function. The context of that function ends, with a cause, as soon as the lease ends:
//
//	l, err := locker.Open("redis://localhost:6379")
//	…
//	err = locker.Run(ctx, l, locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
//		return ship(ctx, 42) // ctx ends if the lock is lost
//	})
//
// A lease is renewed while it is held, and its holder is notified when it is lost. Every grant
// carries a fence ([Lease.Fence]): a number that only grows. With the fence, a database can refuse
// the writes of a holder that was paused for too long.
//
// Without this check in the database, a lease on Redis only saves duplicate work. The lease then
// excludes other holders only under two conditions: the holder's pauses stay shorter than the
// lease, and the server loses no data.
//
// Waiters queue on the server, and each waiter is notified when its turn comes. Callers of one
// process may hand a lease over among themselves, and each caller gets a fence of its own.
// [WithFair], [WithHandoffs] and [WithoutQueue] change the queue and the hand-over. A lock is a
// plain key on Redis, so it excludes other libraries that set the same key, and they exclude it.
//
// An [Engine] does the waiting, the renewing and the observing for all kinds of lock. Package
// lockertest has a lock server in memory for tests.
package locker
