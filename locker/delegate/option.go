package delegate

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// An Option sets up a [Sender] or a [Receiver]. Give the same Options to both sides.
type Option func(*config)

// config has the values of the options. newConfig sets their defaults.
type config struct {
	keys     [][]byte // the keys of signatures; without keys, delegations use a secret
	audience string
	depth    int
	timeout  time.Duration
}

func newConfig(opts []Option) (config, error) {
	c := config{depth: 3, timeout: time.Minute}
	for i, o := range opts {
		if o == nil {
			return c, fmt.Errorf("option %d is nil; leave it out instead", i+1)
		}
		o(&c)
	}
	return c, c.validate()
}

const minKey = 16

func (c *config) validate() error {
	for _, k := range c.keys {
		if len(k) < minKey {
			return fmt.Errorf("WithSigning: a key of %d bytes; give at least %d random ones", len(k), minKey)
		}
	}
	switch {
	case c.depth < 1 || c.depth > 100:
		return fmt.Errorf("WithDepth(%d): give 1 to 100 hops", c.depth)
	case c.timeout < time.Second || c.timeout > 24*time.Hour:
		return fmt.Errorf("WithTimeout(%v): give a time from 1s to 24h", c.timeout)
	case len(c.audience) > 256:
		return errors.New("WithAudience: the name has more than 256 bytes")
	}
	return nil
}

// WithSigning delegates by a signature instead of a secret that is stored on Redis. A signature
// saves a round trip for each call. All services need the same key of at least 16 random bytes. A
// Receiver also accepts signatures of older keys. To replace a key, take three steps, and complete
// each step in all services before the next step: give the new key in second place, then in first
// place, and then alone.
func WithSigning(key []byte, older ...[]byte) Option {
	return func(c *config) {
		c.keys = nil
		for _, k := range append([][]byte{key}, older...) {
			c.keys = append(c.keys, slices.Clone(k))
		}
	}
}

// WithAudience names the service for which signatures are made. A service refuses a signature that
// was made for another service. Default: all services that have the key.
func WithAudience(name string) Option { return func(c *config) { c.audience = name } }

// WithDepth sets over how many hops a lease can be delegated. With 1 hop, only the called service
// can use the lease. The option of the first Sender counts. Default: 3.
func WithDepth(hops int) Option { return func(c *config) { c.depth = hops } }

// WithTimeout sets the longest time from when a delegation is made until the call that uses it
// begins. A call that has begun may continue as long as the lease is held. Default: 1 min. With
// signatures, the clocks of the services must differ by less than d.
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }
