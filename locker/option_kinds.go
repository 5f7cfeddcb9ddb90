package locker

import (
	"time"
)

// An Option sets up a Locker of any kind. Options cannot be changed on a live Locker.
//
// Options for some kinds of Lockers have types of their own, so that a constructor does not compile
// with an option that it cannot use. To pass a slice of Options to a constructor, use
// [WithOptions].
type Option interface {
	SingleOption
	QuorumOption
	set(c *config)
}

// A SingleOption sets up a Locker on one Redis server, one Sentinel set or one Redis Cluster:
// [New], [NewReadWrite] and [NewSemaphore].
type SingleOption interface {
	setSingle(c *config)
}

// A QuorumOption sets up a Locker on several Redis servers: [NewRedlock] and [EnrollRedlock].
type QuorumOption interface {
	setQuorum(c *config)
}

type (
	anyOption    func(*config)
	singleOption func(*config)
	quorumOption func(*config)
)

func (o anyOption) set(c *config)       { o(c) }
func (o anyOption) setSingle(c *config) { o(c) }
func (o anyOption) setQuorum(c *config) { o(c) }

func (o singleOption) setSingle(c *config) { o(c) }

func (o quorumOption) setQuorum(c *config) { o(c) }

// WithOptions makes one Option of several, in their order.
func WithOptions(opts ...Option) Option {
	return anyOption(func(c *config) {
		for _, o := range opts {
			o.set(c)
		}
	})
}

// configure returns the config that the options opts set. The function apply sets one option.
func configure[O any](opts []O, apply func(O, *config)) (config, error) {
	c := newConfig()
	for _, o := range opts {
		apply(o, &c)
	}
	return c, c.complete()
}

// WithReplicaAck counts a lease as granted, renewed or extended only when n replicas have
// acknowledged it before timeout is over. A grant with too few acknowledgements is undone and fails
// with ErrUnavailable. A renewal with too few acknowledgements does not count. If the later
// renewals also get too few acknowledgements, the lease is lost. So n replicas know every lease
// that a holder relies on, and a failover to one of these replicas loses no such lease. But Redis
// chooses the replica by itself, and a failover to another replica may lose leases. Let the
// database check the fence.
//
// With this option, an acquire or a batch of renewals takes until the replicas have answered. One
// more call confirms a grant that came by message. timeout must be shorter than the client's
// ReadTimeout. The client must be able to pipeline, as the clients of go-redis are. Default: a
// grant counts without acknowledgements.
func WithReplicaAck(n int, timeout time.Duration) SingleOption {
	return singleOption(func(c *config) { c.acked, c.replicas, c.ackedWithin = true, n, timeout })
}

// WithNodeTimeout sets how long one step on a quorum waits for a node that does not answer. The
// step waits only if the answers of the other nodes do not already decide the result. This time is
// independent of the TTL. Default: 500 ms.
//
// latchkit gives up every call after one second, and then the node counts as silent. So for a node
// that hangs, a d of more than one second has no effect. Such a d matters only for
// subscriptions, and for answers that take several calls, for example when a script must be
// loaded again.
func WithNodeTimeout(d time.Duration) QuorumOption {
	return quorumOption(func(c *config) { c.nodeTimeout = d })
}
