package locker

import "fmt"

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
// [NewSingle], [NewReadWrite] and [NewSemaphore].
type SingleOption interface {
	SemaphoreOption
	setSingle(c *config)
}

// A SemaphoreOption sets up a Locker of [NewSemaphore]. All SingleOptions are SemaphoreOptions.
type SemaphoreOption interface {
	setSemaphore(c *config)
}

// A QuorumOption sets up a Locker on several Redis servers: [NewRedlock] and [EnrollRedlock].
type QuorumOption interface {
	setQuorum(c *config)
}

// A ServersOption sets up a Locker on one Redis server or on several: it is a SingleOption and a
// QuorumOption.
type ServersOption interface {
	SingleOption
	QuorumOption
}

type (
	anyOption    func(*config)
	singleOption func(*config)
	quorumOption func(*config)

	serversOption func(*config)
)

func (o anyOption) set(c *config)          { o(c) }
func (o anyOption) setSingle(c *config)    { o(c) }
func (o anyOption) setQuorum(c *config)    { o(c) }
func (o anyOption) setSemaphore(c *config) { o(c) }

func (o singleOption) setSingle(c *config)    { o(c) }
func (o singleOption) setSemaphore(c *config) { o(c) }

func (o quorumOption) setQuorum(c *config) { o(c) }

func (o serversOption) setSingle(c *config)    { o(c) }
func (o serversOption) setQuorum(c *config)    { o(c) }
func (o serversOption) setSemaphore(c *config) { o(c) }

// WithOptions makes one Option of several, in their order.
func WithOptions(opts ...Option) Option {
	return anyOption(func(c *config) {
		for i, o := range opts {
			if o == nil {
				c.wrong = nilOption(i)
				return
			}
			o.set(c)
		}
	})
}

// nilOption returns the error for a nil Option at index i.
func nilOption(i int) error {
	return fmt.Errorf("latchkit: option %d is nil; leave it out instead", i+1)
}

// configure returns the config that the options opts set. The function apply sets one option.
func configure[O comparable](opts []O, apply func(O, *config)) (config, error) {
	c := newConfig()
	var none O
	for i, o := range opts {
		if o == none {
			return c, nilOption(i)
		}
		apply(o, &c)
	}
	return c, c.complete()
}
