package locker

import (
	"time"
)

// DefaultNodeTimeout is how long a quorum waits for a node when [WithNodeTimeout] sets no other.
const DefaultNodeTimeout = 500 * time.Millisecond

// WithNodeTimeout sets how long one step on a quorum waits for a node that does not answer. The
// step waits only while the answers of the other nodes do not decide it. This time is independent
// of the TTL. Default: [DefaultNodeTimeout].
//
// For a node that hangs, a d of more than one second is useless. latchkit gives up every call after
// one second, and then the node counts as silent. A larger d matters only for subscriptions, and
// for answers that take several calls, for example when a script must be loaded again.
func WithNodeTimeout(d time.Duration) QuorumOption {
	return quorumOption(func(c *config) { c.nodeTimeout = d })
}
