package locker

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// An Option sets up a Locker. Options cannot be changed on a live one.
type Option func(*config)

// config is what the options set; its defaults stand in newConfig and nowhere else.
type config struct {
	ttl        time.Duration
	maxTTL     time.Duration
	prefix     string
	backoff    Backoff
	observer   Observer
	renewal    bool
	maxWaiters int
	metadata   func(context.Context) string
	queue      bool
	handoffs   int

	nodeTimeout time.Duration

	adaptive     *adaptiveBackoff
	adaptiveTTL  bounds
	renewClient  Client
	renewApart   bool
	autoPipeline bool
	maxSkew      time.Duration
	failsOver    bool // another server may take over, whose clock differs by maxSkew
	acks         acks
}

func newConfig(opts []Option) (config, error) {
	c := config{
		ttl:      DefaultTTL,
		backoff:  Jitter(Exponential(5*time.Millisecond, 100*time.Millisecond)),
		renewal:  true,
		queue:    true,
		handoffs: DefaultHandoffs,

		maxSkew:     DefaultMaxSkew,
		nodeTimeout: DefaultNodeTimeout,
	}
	for i, o := range opts {
		if o == nil {
			return c, fmt.Errorf("latchkit: option %d is nil; leave it out instead", i+1)
		}
		o(&c)
	}
	if !c.queue && c.handoffs > 1 {
		c.handoffs = 1 // who is to poll like everybody else must not hand over inside the process either
	}
	return c, c.validate()
}

func (c *config) validate() error {
	switch {
	case c.ttl < time.Millisecond || c.ttl > longestTime:
		return fmt.Errorf("latchkit: WithTTL(%v); from 1ms to 10 years are allowed, and in practice it is several round trips to the server", c.ttl)
	case c.maxTTL != 0 && c.maxTTL < c.ttl:
		return fmt.Errorf("latchkit: WithMaxTTL(%v) is shorter than the default TTL %v; lower it with WithTTL", c.maxTTL, c.ttl)
	case c.backoff == nil:
		return errors.New("latchkit: WithBackoff(nil); leave the option out to get the default")
	case c.adaptive != nil && !c.adaptive.sensible():
		return fmt.Errorf("latchkit: WithAdaptiveBackoff(%v, %v); give two times from 1ms to 10 years, the shorter first", c.adaptive.least, c.adaptive.most)
	case c.adaptiveTTL != bounds{} && !c.adaptiveTTL.sensible():
		return fmt.Errorf("latchkit: WithAdaptiveTTL(%v, %v); give two times from 1ms to 10 years, the shorter first", c.adaptiveTTL.least, c.adaptiveTTL.most)
	case c.maxTTL != 0 && c.maxTTL < c.adaptiveTTL.most:
		return fmt.Errorf("latchkit: WithMaxTTL(%v) is shorter than what WithAdaptiveTTL may choose, %v", c.maxTTL, c.adaptiveTTL.most)
	case c.adaptiveTTL.most > 0 && !c.renewal:
		return errors.New("latchkit: WithAdaptiveTTL learns from renewals, which WithoutRenewal forbids; give one of them")
	case c.renewApart && isNil(c.renewClient):
		return errors.New("latchkit: WithRenewClient(nil); leave the option out to renew through the Locker's client")
	case c.handoffs < 1:
		return fmt.Errorf("latchkit: WithHandoffs(%d); give at least 1, which hands nothing over inside the process", c.handoffs)
	case c.nodeTimeout < time.Millisecond || c.nodeTimeout > longestTime:
		return fmt.Errorf("latchkit: WithNodeTimeout(%v); from 1ms to 10 years are allowed, and in practice it is several round trips to the farthest node", c.nodeTimeout)
	case c.maxWaiters < 0:
		return fmt.Errorf("latchkit: WithMaxWaiters(%d); give a positive number, or leave it out for no limit", c.maxWaiters)
	case c.maxSkew < 0 || c.maxSkew > longestTime:
		return fmt.Errorf("latchkit: WithMaxSkew(%v); give how far the servers' clocks may differ, 0 when they cannot", c.maxSkew)
	case c.acks != acks{} && !c.acks.sensible():
		return fmt.Errorf("latchkit: WithReplicaAck(%d, %v); give at least one replica and at least 1ms, or leave the option out", c.acks.replicas, c.acks.within)
	case len(c.prefix) > maxKeyBytes/2:
		return fmt.Errorf("latchkit: WithPrefix: %d bytes leave no room for keys; at most %d are allowed", len(c.prefix), maxKeyBytes/2)
	}
	return nil
}

// WithTTL sets the time to live of leases whose Rule has none. Default: [DefaultTTL].
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithMaxTTL is the largest TTL or AtLeast that a Rule may ask for. Default: 0, any; on quorums 1 minute, because a node that may
// have forgotten its leases is left out until the longest of them is over.
func WithMaxTTL(d time.Duration) Option { return func(c *config) { c.maxTTL = d } }

// WithPrefix puts p in front of every key on the server. Default: none, so that the lock "a" is the Redis key "a",
// where other lock libraries see it.
func WithPrefix(p string) Option { return func(c *config) { c.prefix = p } }

// WithBackoff sets the pauses between attempts where nobody tells a waiter that its turn has come: behind a holder of
// another library, without a subscription, with [WithoutQueue]; and after calls without an answer. A waiter in the queue
// is told, and asks again by itself only in case that fails. Default: 5 ms, doubling up to 100 ms, jittered. While the
// holder is known, a pause is no longer than what it has left, and 1 ms.
func WithBackoff(b Backoff) Option { return func(c *config) { c.backoff = b } }

// WithObserver makes o see every operation. Default: none, at no cost.
func WithObserver(o Observer) Option { return func(c *config) { c.observer = o } }

// WithoutRenewal lets leases end after their TTL, with ErrExpired, unless Extend is called.
func WithoutRenewal() Option { return func(c *config) { c.renewal = false } }

// WithMaxWaiters refuses the n+1st waiter of a key in this process with ErrTooManyWaiters. Default: 0, no limit.
func WithMaxWaiters(n int) Option { return func(c *config) { c.maxWaiters = n } }

// WithAdaptiveBackoff chooses the pauses between attempts by what was observed of leases with the same Rule.Name in this
// process: how long they were held, and how often another attempt succeeded. Pauses become longer while most attempts are
// refused, and shorter while most succeed, so that about every second one does. It replaces [WithBackoff], and like it
// matters only where a waiter is not told that its turn has come.
func WithAdaptiveBackoff(least, most time.Duration) Option {
	return func(c *config) { c.adaptive = &adaptiveBackoff{bounds{least, most}} }
}

// WithAdaptiveTTL chooses the time to live of leases whose Rule has none: as short as least while renewals are prompt, so
// that a crash is noticed soon, and longer, up to most, as renewals are answered later. New leases get what was learnt at
// once, held ones with their next renewal. Default: a fixed TTL, see [WithTTL]. Observers see it in [Outcome].
func WithAdaptiveTTL(least, most time.Duration) Option {
	return func(c *config) { c.adaptiveTTL = bounds{least, most} }
}

// WithRenewClient sends renewals through a client of its own, so that they do not queue for connections behind the
// service's other traffic. It must lead to the same server, or the same cluster. Default: the Locker's client.
func WithRenewClient(client Client) Option {
	return func(c *config) { c.renewClient, c.renewApart = client, true }
}

// DefaultHandoffs is the longest streak when [WithHandoffs] does not say otherwise.
const DefaultHandoffs = 64

// WithHandoffs bounds a streak: how many callers of this process, one after the other, use one lease before it goes back
// to the server, where other processes wait. Each of them has a fence of its own. A streak also ends after 10 ms. Callers share
// a lease if Key, Mode and TTL of their Rules are equal, they may wait, and neither AtLeast, AtMost nor Once is set. 1: none
// do, every caller queues at the server by itself. Default: [DefaultHandoffs].
func WithHandoffs(n int) Option { return func(c *config) { c.handoffs = n } }

// DefaultNodeTimeout is how long a quorum waits for a node when [WithNodeTimeout] does not say otherwise.
const DefaultNodeTimeout = 500 * time.Millisecond

// WithNodeTimeout is how long one step on a quorum waits for a node that does not answer, where the answers of the others do not
// decide. It has nothing to do with the TTL. Default: [DefaultNodeTimeout].
func WithNodeTimeout(d time.Duration) Option { return func(c *config) { c.nodeTimeout = d } }

// WithFair grants strictly in the order in which callers of all processes began to wait at the server: it is
// WithHandoffs(1). By default processes take turns, a streak each, so a caller may be overtaken by callers of other processes
// who began to wait later.
func WithFair() Option { return WithHandoffs(1) }

// WithoutQueue makes waiters ask again after the pauses of their Backoff, like other libraries, and leave the server's
// queue alone: for the time of a migration, while others who only poll want the same keys. Order is not kept then, and no
// lease is handed over inside the process. Use it in all processes that lock these keys: a queue that is there is served first.
func WithoutQueue() Option { return func(c *config) { c.queue = false } }

// maxMetadataBytes keeps a lease small; longer metadata is cut.
const maxMetadataBytes = 256

// WithMetadata writes what f returns into the lease, where Inspect and refused callers read it: at most 256 bytes, the
// rest is cut. f is called for each acquire, with the context that the Observer's Begin returned, so a trace's
// identity can be put there. Others can read it: no secrets.
func WithMetadata(f func(ctx context.Context) string) Option {
	return func(c *config) { c.metadata = f }
}
