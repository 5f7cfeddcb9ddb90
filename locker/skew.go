package locker

import (
	"time"

	"github.com/redis/go-redis/v9"
)

// DefaultMaxSkew is how far the clocks of two servers may differ when [WithMaxSkew] does not say otherwise.
const DefaultMaxSkew = 500 * time.Millisecond

// WithMaxSkew says how far the clocks of a master and of the replica that may take its place can differ. A lease ends by
// the server's clock: after a failover it may end sooner by that much. So this side counts on a lease for min(d, TTL/4)
// less. On Sentinel, on a Cluster and in a quorum the default is [DefaultMaxSkew]; on one server nothing, unless this
// option is given: do so when something else, such as a hosting service, promotes its replicas. A node of a quorum whose
// clock is further than d from those of the others does not vote.
func WithMaxSkew(d time.Duration) Option {
	return func(c *config) { c.maxSkew, c.failsOver = d, true }
}

// drift is the part of a lease that is not used: the clocks of client and server may run at rates that differ by 1 %, the
// server expires keys within a millisecond or two, and where another server may take over, its clock may differ.
func (c *config) drift(ttl time.Duration) time.Duration {
	d := ttl/100 + 2*time.Millisecond
	if c.failsOver {
		d += min(c.maxSkew, ttl/4)
	}
	return d
}

// failsOver says whether a client goes on with another server when its own is gone.
func failsOver(c Client) bool {
	switch c := c.(type) {
	case *redis.ClusterClient:
		return true
	case interface{ Options() *redis.Options }:
		return c.Options().Addr == "FailoverClient" // what go-redis puts there: Sentinel knows the address
	}
	return false
}
