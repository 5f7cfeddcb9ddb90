// Package lead elects one of several processes to do a job: the leader. The other processes wait,
// and one of them leads as soon as the leader stops or dies.
//
//	err := lead.Run(ctx, l, locker.Rule{Key: "outbox"}, func(ctx context.Context) error {
//		lease, _ := locker.FromContext(ctx)
//		return relay(ctx, lease.Fence()) // until ctx ends: then this process leads no longer
//	})
//
// A term is the time for which one process leads. A term is one lease of the Locker. So the number
// of a term is the lease's fence, which is larger than the numbers of all terms before. A leader
// that was paused for longer than its lease does not notice at once that another process leads.
// Only data that checks the fence refuses the writes of such a leader.
//
// [New] makes a [Leader] for a program that asks whether it leads, watches the leader, or gives
// the lead to another process. For all other programs, [Run] is enough.
package lead
