package locker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/latchkit/latchkit/internal/typednil"
	"github.com/latchkit/latchkit/locker/store"
)

// config is what the options set; its defaults stand in newConfig and nowhere else.
type config struct {
	wrong error // an option that cannot be used

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

	maxRetryAfter time.Duration
	refuseEarly   bool

	nodeTimeout time.Duration

	adaptive    *adaptiveBackoff
	adaptiveTTL bounds
	renewClient Client
	renewApart  bool
	maxSkew     time.Duration
	failsOver   bool // another server may take over, whose clock differs by maxSkew
	acked       bool // WithReplicaAck was given
	replicas    int
	ackedWithin time.Duration
}

func newConfig() config {
	return config{
		ttl:      DefaultTTL,
		backoff:  Jitter(Exponential(5*time.Millisecond, 100*time.Millisecond)),
		renewal:  true,
		queue:    true,
		handoffs: DefaultHandoffs,

		maxRetryAfter: DefaultMaxRetryAfter,

		maxSkew:     DefaultMaxSkew,
		nodeTimeout: DefaultNodeTimeout,
	}
}

// complete makes the options fit each other, or returns why they do not.
func (c *config) complete() error {
	if !c.queue && c.handoffs > 1 {
		c.handoffs = 1 // a waiter that polls like all others must not get hand-offs in its process either
	}
	return c.validate()
}

func (c *config) validate() error {
	switch {
	case c.wrong != nil:
		return c.wrong
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
	case c.renewApart && typednil.Is(c.renewClient):
		return errors.New("latchkit: WithRenewClient(nil); leave the option out to renew through the Locker's client")
	case c.maxRetryAfter < time.Millisecond || c.maxRetryAfter > longestTime:
		return fmt.Errorf("latchkit: WithMaxRetryAfter(%v); from 1ms to 10 years are allowed", c.maxRetryAfter)
	case c.handoffs < 1:
		return fmt.Errorf("latchkit: WithHandoffs(%d); give at least 1, which hands nothing over inside the process", c.handoffs)
	case c.nodeTimeout < time.Millisecond || c.nodeTimeout > longestTime:
		return fmt.Errorf("latchkit: WithNodeTimeout(%v); from 1ms to 10 years are allowed, and in practice it is several round trips to the farthest node", c.nodeTimeout)
	case c.maxWaiters < 0:
		return fmt.Errorf("latchkit: WithMaxWaiters(%d); give a positive number, or leave it out for no limit", c.maxWaiters)
	case c.maxSkew < 0 || c.maxSkew > longestTime:
		return fmt.Errorf("latchkit: WithMaxSkew(%v); give how far the servers' clocks may differ, 0 when they cannot", c.maxSkew)
	case c.acked && (c.replicas < 1 || c.ackedWithin < time.Millisecond):
		return fmt.Errorf("latchkit: WithReplicaAck(%d, %v); give at least one replica and at least 1ms, or leave the option out", c.replicas, c.ackedWithin)
	case len(c.prefix) > store.MaxKeyBytes/2:
		return fmt.Errorf("latchkit: WithPrefix: %d bytes leave no room for keys; at most %d are allowed", len(c.prefix), store.MaxKeyBytes/2)
	}
	return nil
}

// WithTTL sets the time to live of leases whose Rule has none. Default: [DefaultTTL].
func WithTTL(d time.Duration) Option { return anyOption(func(c *config) { c.ttl = d }) }

// WithMaxTTL is the largest TTL or AtLeast that a Rule may ask for. Default: 0, any; on quorums 1 minute, because a node that may
// have forgotten its leases is left out until the longest of them is over.
func WithMaxTTL(d time.Duration) Option { return anyOption(func(c *config) { c.maxTTL = d }) }

// WithPrefix puts p in front of every key on the server. Default: none, so that the lock "a" is the Redis key "a",
// where other lock libraries see it.
func WithPrefix(p string) Option { return anyOption(func(c *config) { c.prefix = p }) }

// WithBackoff sets the pauses between attempts where nobody tells a waiter that its turn has come: behind a holder of
// another library, without a subscription, with [WithoutQueue]; and after calls without an answer. A waiter in the queue
// is told, and asks again by itself only in case that fails. Default: 5 ms, doubling up to 100 ms, jittered. While the
// holder is known, a pause is no longer than what it has left, and 1 ms.
func WithBackoff(b Backoff) Option { return anyOption(func(c *config) { c.backoff = b }) }

// WithObserver makes o see every operation. Default: none, at no cost.
func WithObserver(o Observer) ObserverOption {
	return observerOption{func(c *config) { c.observer = o }}
}

// WithoutRenewal lets leases end after their TTL, with ErrExpired, unless Extend is called.
func WithoutRenewal() Option { return anyOption(func(c *config) { c.renewal = false }) }

// WithMaxWaiters refuses the n+1st waiter of a key in this process with ErrTooManyWaiters. Default: 0, no limit.
func WithMaxWaiters(n int) Option { return anyOption(func(c *config) { c.maxWaiters = n }) }

// WithMaxRetryAfter bounds [Error.RetryAfter] where it is an estimate: from how long the holder has held the key already, how
// long holders of this Rule.Name held it in this process, and the place in the queue. What Rule.AtLeast keeps is certain, and
// not bounded. Default: [DefaultMaxRetryAfter]; up to a quarter more is added as jitter.
func WithMaxRetryAfter(d time.Duration) Option {
	return anyOption(func(c *config) { c.maxRetryAfter = d })
}

// WithEarlyRefusal refuses an Acquire at once, with ErrBusy, when its Wait will probably be over before its turn comes: under
// overload callers hear that early instead of late. It begins when this process has held ten leases of the Rule.Name, and
// knows how long they take. Default: every caller waits as long as its Wait allows.
func WithEarlyRefusal() Option { return anyOption(func(c *config) { c.refuseEarly = true }) }

// WithAdaptiveBackoff chooses the pauses between attempts by what was observed of leases with the same Rule.Name in this
// process: how long they were held, and how often another attempt succeeded. Pauses become longer while most attempts are
// refused, and shorter while most succeed, so that about every second one does. It replaces [WithBackoff], and like it
// matters only where a waiter is not told that its turn has come.
func WithAdaptiveBackoff(least, most time.Duration) Option {
	return anyOption(func(c *config) { c.adaptive = &adaptiveBackoff{bounds{least, most}} })
}

// WithAdaptiveTTL chooses the time to live of leases whose Rule has none: as short as least while renewals are prompt, so
// that a crash is noticed soon, and longer, up to most, as renewals are answered later. New leases get what was learnt at
// once, held ones with their next renewal. Default: a fixed TTL, see [WithTTL]. Observers see it in [Outcome].
func WithAdaptiveTTL(least, most time.Duration) Option {
	return anyOption(func(c *config) { c.adaptiveTTL = bounds{least, most} })
}

// DefaultHandoffs is the longest streak when [WithHandoffs] does not say otherwise.
const DefaultHandoffs = 64

// WithHandoffs bounds a streak: how many callers of this process, one after the other, use one lease before it goes back
// to the server, where other processes wait. Each of them has a fence of its own. A streak also ends after 10 ms. Callers share
// a lease if Key, Mode and TTL of their Rules are equal, they may wait, and neither AtLeast, AtMost nor Once is set. 1: none
// do, every caller queues at the server by itself. Default: [DefaultHandoffs].
func WithHandoffs(n int) Option { return anyOption(func(c *config) { c.handoffs = n }) }

// WithFair grants strictly in the order in which callers of all processes began to wait at the server: it is
// WithHandoffs(1). By default processes take turns, a streak each, so a caller may be overtaken by callers of other processes
// who began to wait later. A quorum promises no order, because its nodes can disagree about who waited first: there it is
// WithHandoffs(1) and no more.
func WithFair() Option { return WithHandoffs(1) }

// WithoutQueue makes waiters ask again after the pauses of their Backoff, like other libraries, and leave the server's
// queue alone: for the time of a migration, while others who only poll want the same keys. Order is not kept then, and no
// lease is handed over inside the process. Use it in all processes that lock these keys: a queue that is there is served first.
func WithoutQueue() Option { return anyOption(func(c *config) { c.queue = false }) }

// maxMetadataBytes keeps a lease small; longer metadata is cut.
const maxMetadataBytes = 256

// WithMetadata writes what f returns into the lease, where Inspect and refused callers read it: at most 256 bytes, the
// rest is cut. f is called for each acquire, with the context that the Observer's Begin returned, so a trace's
// identity can be put there. Others can read it: no secrets.
func WithMetadata(f func(ctx context.Context) string) Option {
	return anyOption(func(c *config) { c.metadata = f })
}

// DefaultMaxSkew is how far the clocks of two servers may differ when [WithMaxSkew] does not say otherwise.
const DefaultMaxSkew = 500 * time.Millisecond

// WithMaxSkew says how far the clocks of a master and of the replica that may take its place can differ. A lease ends by
// the server's clock: after a failover it may end sooner by that much. So this side counts on a lease for min(d, TTL/4)
// less. On Sentinel and on a Cluster the default is [DefaultMaxSkew]; on one server nothing, unless this option is given:
// do so when something else, such as a hosting service, promotes its replicas.
//
// In a quorum, whose default is [DefaultMaxSkew] too, the nodes keep a lease for 2 × d longer instead: a holder that dies
// leaves its key that much later. A node whose clock is further than d from those of the others does not vote, and whoever
// has seen that makes it wait as one that forgot its leases. Give all processes the same d.
func WithMaxSkew(d time.Duration) Option {
	return anyOption(func(c *config) { c.maxSkew, c.failsOver = d, true })
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
