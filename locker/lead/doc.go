// Package lead elects one of several processes, the leader, to do a job. The other processes wait.
// When the leader stops or dies, one of the waiting processes becomes the leader.
//
//	err := lead.Run(ctx, l, locker.Rule{Key: "leader:outbox"}, func(ctx context.Context) error {
//		lease, _ := locker.FromContext(ctx)
//		return relay(ctx, lease.Fence()) // until ctx ends: then this process leads no longer
//	})
//
// A term is the time for which one process leads. A term is one lease of the Locker. So the number
// of a term is the lease's fence, which is larger than the numbers of all earlier terms, except on
// a semaphore with several leaders. A leader that was paused for longer than its lease does not
// notice at once that another process leads. The data must check the fence to refuse the writes of
// this old leader.
//
// Some programs ask whether they lead, watch the leader, or let another process lead. For these
// programs, [New] makes a [Leader]. For all other programs, [Run] is enough.
//
// Use lead when a loop runs all the time in one process. For jobs at a time, use contrib/cronlock:
// "A leader, a cron tick, a schedule" in docs/choosing.md compares all ways.
//
// Experimental: a minor version may change this package. See "Stability" in the README.
package lead
