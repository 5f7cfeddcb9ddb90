package redisstore

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/locker/store"
)

// Acks has the number of replicas that must acknowledge a lease, and the time to wait for them.
// With the zero value, no replica needs to acknowledge a lease.
type Acks struct {
	Replicas int
	Within   time.Duration
}

func (a Acks) required() bool { return a.Replicas > 0 }

// checkClient returns an error if a requires acknowledgements and the client c cannot wait for
// them.
func (a Acks) checkClient(c Client) error {
	if !a.required() {
		return nil
	}
	if _, ok := c.(pipeliner); !ok {
		return fmt.Errorf("latchkit: WithReplicaAck: a %T has no Pipeline; give a *redis.Client or a *redis.ClusterClient", c)
	}
	timeout := time.Duration(0)
	switch c := c.(type) {
	case interface{ Options() *redis.Options }:
		timeout = c.Options().ReadTimeout
	case *redis.ClusterClient:
		timeout = c.Options().ReadTimeout
	}
	if timeout > 0 && a.Within >= timeout {
		return fmt.Errorf("latchkit: WithReplicaAck: the client's ReadTimeout (%v) must be longer than the acknowledgement timeout (%v)", timeout, a.Within)
	}
	return nil
}

// pipeliner is a Client that can send several commands at once, on one connection to each server.
type pipeliner interface {
	Pipeline() redis.Pipeliner
}

// checkCount checks n, the number of replicas that have acknowledged a lease. It returns nil when n
// is large enough, and otherwise the lease's error. The parameter err is the reason why the
// replicas were not counted, for example a failover that ended the WAIT.
func (a Acks) checkCount(n int, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("%w: it is not known whether replicas have acknowledged the lease: %w", store.ErrUnavailable, err)
	case n < a.Replicas:
		return fmt.Errorf("%w: %w: %d of %d within %v; check the server's replicas", store.ErrUnavailable, store.ErrNotReplicated, n, a.Replicas, a.Within)
	}
	return nil
}
