// Package lockertest helps to test code that uses locks.
//
// [NewMemory] returns a lock server in memory. Its methods take a lease away, fail a call, lose
// the answer to a call, or delay a call. In a testing/synctest bubble, an hour of waiting and
// renewing takes a millisecond:
//
//	synctest.Test(t, func(t *testing.T) {
//		store := lockertest.NewMemory()
//		l := lockertest.NewLocker(t, store)
//		err := locker.Run(t.Context(), l, locker.Rule{Key: "order:42"}, func(ctx context.Context) error {
//			store.Steal("order:42") // as if this process had been paused past its lease
//			<-ctx.Done()
//			return context.Cause(ctx)
//		})
//		if !errors.Is(err, locker.ErrLost) { … }
//	})
//
// Two Lockers on one Memory are like two processes of a service. To disturb only one of these
// processes, make a [Process] for each of them. A Process can be killed or paused, its subscription
// can end, and its events can be delayed, repeated or lost.
//
//	one, other := store.NewProcess(), store.NewProcess()
//	a, b := lockertest.NewLocker(t, one), lockertest.NewLocker(t, other)
//
// Rules with a Limit work as on a Locker of locker.NewSemaphore, so the limit of an adapter's rule
// can be tested too.
//
// Two functions look for the mistakes that users of locks make most often. [Order] fails a test in
// which locks are taken in two orders, which is a deadlock on a bad day. [EachLoss] runs a test once
// for each place where a lease can be lost, and fails if the work goes on.
//
// [Recorder] is an Observer that records what happened.
//
// Experimental: a minor version may change this package. See "Stability" in the README.
package lockertest
