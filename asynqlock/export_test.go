package asynqlock

// WakeName is the metadata of a watcher's lease.
const WakeName = wakeName

// TakeWatchersAway makes g watch no lines, neither its own nor those of other processes. It is the
// control of tests about lines.
func TakeWatchersAway(g *Guard) {
	g.waker.mu.Lock()
	defer g.waker.mu.Unlock()
	g.waker.watchers = mostWatchers
}
