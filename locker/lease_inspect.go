package locker

import "context"

// Inspect returns the holder of the lease's key at the server now, as [Engine.Inspect] does. It is
// for code that has a lease but not its Locker. A lease that is still held is Held with the lease's
// Fence.
func (l *Lease) Inspect(ctx context.Context) (Info, error) {
	return l.engine.Inspect(ctx, l.root().rule.Key)
}
