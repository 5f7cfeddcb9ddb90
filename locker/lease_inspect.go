package locker

import "context"

// Inspect returns the present holder of the lease's key, as [Engine.Inspect] does. This method is
// for code that has a lease but not the Locker of the lease. If the lease is still held, Inspect
// returns Held and the lease's Fence.
func (l *Lease) Inspect(ctx context.Context) (Info, error) {
	return l.engine.Inspect(ctx, l.root().rule.Key)
}
