package locker

import (
	"time"
)

// DefaultNodeTimeout is how long a quorum waits for a node when [WithNodeTimeout] does not say otherwise.
const DefaultNodeTimeout = 500 * time.Millisecond

// WithNodeTimeout is how long one step on a quorum waits for a node that does not answer, where the answers of the others do not
// decide. It has nothing to do with the TTL. Default: [DefaultNodeTimeout].
func WithNodeTimeout(d time.Duration) QuorumOption {
	return quorumOption(func(c *config) { c.nodeTimeout = d })
}
