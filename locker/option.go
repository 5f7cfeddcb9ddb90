package locker

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"time"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/self"
	"github.com/latchkit/latchkit/internal/store"
)

// config holds what the options set. Its defaults are in newConfig and nowhere else.
type config struct {
	ttl         time.Duration
	maxTTL      time.Duration
	maxTTLGiven bool // false: maxTTL is the default on a quorum
	prefix      string
	backoff     Backoff
	observer    Observer
	order       *orderCheck // nil: no check
	renewal     bool
	maxWaiters  int
	metadata    func(context.Context) string
	queue       bool
	handoffs    int
	limit       int  // the units of a key; 0: the Locker is no semaphore
	permits     bool // Rules may have a Limit

	nodeTimeout time.Duration

	adaptive    *bounds // nil: WithAdaptiveBackoff was not given
	adaptiveTTL bounds
	maxSkew     time.Duration
	failsOver   bool // a failover to another server is possible, whose clock may differ by maxSkew
	acked       bool // WithReplicaAck was given
	replicas    int
	ackedWithin time.Duration

	refusedAt *atomic.Int64 // when undoEnded last warned, as an instant; 0: never
}

func newConfig() config {
	return config{
		ttl:      DefaultTTL,
		backoff:  Jitter(Exponential(5*time.Millisecond, 100*time.Millisecond)),
		renewal:  true,
		queue:    true,
		handoffs: longestStreak,
		metadata: func(context.Context) string { return self.Name() },

		maxSkew:     500 * time.Millisecond,
		nodeTimeout: 500 * time.Millisecond,
		refusedAt:   new(atomic.Int64),
	}
}

// validate refuses options that are out of range, or that contradict each other.
func (c *config) validate() error {
	switch {
	case c.ttl < time.Millisecond || c.ttl > longestTime:
		return fmt.Errorf("latchkit: WithTTL(%v); give 1ms to 10 years, in practice several round trips to the server", c.ttl)
	case c.usable(c.ttl) <= 0:
		return fmt.Errorf("latchkit: WithTTL(%v): %v of it are kept free for clocks that differ, so no lease could be used; give several round trips to the server", c.ttl, c.drift(c.ttl))
	case c.maxTTL < 0 || c.maxTTL > longestTime:
		return fmt.Errorf("latchkit: WithMaxTTL(%v); give the largest TTL that a Rule may have: up to 10 years, or 0 for no limit", c.maxTTL)
	case c.maxTTL != 0 && c.maxTTL < c.ttl:
		return fmt.Errorf("latchkit: WithMaxTTL(%v) is shorter than the default TTL %v; lower the default TTL with WithTTL, or raise WithMaxTTL", c.maxTTL, c.ttl)
	case c.adaptive != nil && !c.adaptive.sensible():
		return fmt.Errorf("latchkit: WithAdaptiveBackoff(%v, %v); give two times from 1ms to 10 years, the shorter first", c.adaptive.least, c.adaptive.most)
	case c.adaptiveTTL != bounds{} && !c.adaptiveTTL.sensible():
		return fmt.Errorf("latchkit: WithAdaptiveTTL(%v, %v); give two times from 1ms to 10 years, the shorter first", c.adaptiveTTL.least, c.adaptiveTTL.most)
	case c.adaptiveTTL != bounds{} && c.usable(c.adaptiveTTL.least) <= 0:
		return fmt.Errorf("latchkit: WithAdaptiveTTL(%v, %v): such a short lease ends before its holder learns of it; raise the shorter time", c.adaptiveTTL.least, c.adaptiveTTL.most)
	case c.maxTTL != 0 && c.maxTTL < c.adaptiveTTL.most:
		return fmt.Errorf("latchkit: WithMaxTTL(%v) is shorter than the longest TTL of WithAdaptiveTTL, %v; raise WithMaxTTL, or lower the longest TTL", c.maxTTL, c.adaptiveTTL.most)
	case c.adaptiveTTL.most > 0 && !c.renewal:
		return errors.New("latchkit: WithAdaptiveTTL needs renewals, and WithoutRenewal forbids them; leave one of the two out")
	case c.nodeTimeout < time.Millisecond || c.nodeTimeout > longestTime:
		return fmt.Errorf("latchkit: WithNodeTimeout(%v); give 1ms to 10 years, in practice several round trips to the farthest node", c.nodeTimeout)
	case c.maxWaiters < 0:
		return fmt.Errorf("latchkit: WithMaxWaiters(%d); give a positive number, or leave the option out for no limit", c.maxWaiters)
	case c.maxSkew < 0 || c.maxSkew > longestTime:
		return fmt.Errorf("latchkit: WithMaxSkew(%v); give how far the servers' clocks may differ: 0 to 10 years", c.maxSkew)
	case c.acked && (c.replicas < 1 || c.ackedWithin < time.Millisecond):
		return fmt.Errorf("latchkit: WithReplicaAck(%d, %v); give at least one replica and at least 1ms, or leave the option out", c.replicas, c.ackedWithin)
	case len(c.prefix) > store.MaxKeyBytes/2:
		return fmt.Errorf("latchkit: WithPrefix: %d bytes leave no room for keys; at most %d are allowed", len(c.prefix), store.MaxKeyBytes/2)
	case strings.HasPrefix(c.prefix, store.ReservedPrefix):
		return fmt.Errorf("latchkit: WithPrefix(%q): keys that start with %q are reserved for the locks' own data; choose another prefix", c.prefix, store.ReservedPrefix)
	}
	return nil
}

// WithTTL sets the time to live of leases whose Rule has none. Default: [DefaultTTL].
func WithTTL(d time.Duration) Option { return anyOption(func(c *config) { c.ttl = d }) }

// WithMaxTTL sets the largest TTL or KeepFor that a Rule may have. Default: 0, no limit. On a
// quorum the default is 1 minute, and all processes need the same value, because a node that may
// have forgotten its leases does not vote until the longest lease is over.
func WithMaxTTL(d time.Duration) Option { return anyOption(func(c *config) { c.maxTTL = d }) }

// WithPrefix puts p in front of every key on the server. Default: none, so the lock "a" is the
// Redis key "a", which other lock libraries see.
func WithPrefix(p string) Option { return anyOption(func(c *config) { c.prefix = p }) }

// WithBackoff sets the pauses between attempts of a waiter that cannot be notified: a holder of
// another library has the key, the waiter's process has no subscription, or [WithoutQueue] was
// given. It also sets the pauses after calls without an answer. Default: 5 ms, doubling up to 100
// ms, on a quorum from 1 up to 50 ms, jittered. A pause lasts at most until 1 ms after the holder's
// lease can end, as far as known.
func WithBackoff(b Backoff) Option { return anyOption(func(c *config) { c.backoff = b }) }

// WithObserver notifies o of every operation. Default: no Observer, which costs nothing.
func WithObserver(o Observer) Option {
	return anyOption(func(c *config) { c.observer = o })
}

// WithoutRenewal lets leases end after their TTL, with ErrExpired, unless Extend is called.
func WithoutRenewal() Option { return anyOption(func(c *config) { c.renewal = false }) }

// WithMaxWaiters limits the waiters of a key in this process to n. Each further caller is refused
// with ErrTooManyWaiters. Default: 0, no limit.
func WithMaxWaiters(n int) Option { return anyOption(func(c *config) { c.maxWaiters = n }) }

// WithAdaptiveBackoff replaces [WithBackoff] by pauses that it learns from the leases with the same
// Rule.Name in this process, so that about one of two attempts succeeds. Each pause lies between
// least and most. Experimental: a minor version may change or remove it.
func WithAdaptiveBackoff(least, most time.Duration) Option {
	return anyOption(func(c *config) { c.adaptive = &bounds{least, most} })
}

// WithAdaptiveTTL chooses the TTL of leases whose Rule has none. While renewals are answered
// promptly, it stays near least, so that a crash is detected soon; when they are answered late, it
// grows up to most. Held leases get it at their next renewal. Observers receive it in [Outcome].
// Experimental: a minor version may change or remove it.
func WithAdaptiveTTL(least, most time.Duration) Option {
	return anyOption(func(c *config) { c.adaptiveTTL = bounds{least, most} })
}

// WithFair lets callers of all processes get a key in the order in which they began to wait at the
// server. By default, processes take turns of one streak each: up to 64 callers of a process use one
// lease, one after the other, each with a fence of its own, for 10 ms. Then the lease goes back to
// the server, where other processes wait. Callers share a lease if their Rules have equal Key, Mode
// and TTL, allow a wait, and do not set KeepFor, EndAfter, OnceFor or Metadata. A quorum promises no
// order even with WithFair. Give [WithMaxWaiters] as well: if more callers come than can be served
// within their Wait, the server hands the key to callers that have just left.
func WithFair() Option { return anyOption(func(c *config) { c.handoffs = 1 }) }

// WithoutQueue makes waiters ask again after pauses (see [WithBackoff]), instead of using the
// server's queue, in no order, and without hand-offs in the process. Use it during a migration, in
// all processes that lock these keys, while other libraries that only poll want them: waiters in
// the queue are served before waiters that poll.
func WithoutQueue() Option { return anyOption(func(c *config) { c.queue = false }) }

// maxMetadataBytes is the largest length of metadata, so that a lease stays small. Longer metadata
// is cut.
const maxMetadataBytes = 256

// WithMetadata writes the text that f returns into the lease, cut to 256 bytes. Inspect and refused
// callers read this text, so put no secret into it. f is called for each acquire, with the context
// that the Observer's Begin returned. Default: PROGRAM@HOST:PID, at most 64 bytes, where PROGRAM is
// the environment variable OTEL_SERVICE_NAME or the name of the program's file. WithMetadata(nil)
// writes nothing.
func WithMetadata(f func(ctx context.Context) string) Option {
	return anyOption(func(c *config) { c.metadata = f })
}

// WithMaxSkew sets how far the clocks of a master and of the replica that may replace it can
// differ. A lease ends by the server's clock, so after a failover it may end sooner by this
// difference. A holder therefore ends its lease earlier by min(d, TTL/4). On Sentinel and on a
// Cluster the default is 500 ms. On one server, nothing is subtracted by default: give this option
// if a hosting service or another tool promotes the server's replicas.
//
// On a quorum the default is 500 ms too, but there the nodes keep a lease for 2 × d longer, and so
// does the key of a holder that has died. A node whose clock differs by more than d from the clocks
// of the other nodes does not vote, like one that has forgotten its leases. Give all processes the
// same d.
func WithMaxSkew(d time.Duration) Option {
	return anyOption(func(c *config) { c.maxSkew, c.failsOver = d, true })
}

// drift is the part of a lease that the holder does not use. It allows for a difference of 1 %
// between the rates of the two clocks, and for the one or two milliseconds within which the server
// expires keys. If a replica may replace the server, drift also allows for the difference between
// the clocks of these two servers.
func (c *config) drift(ttl time.Duration) time.Duration {
	d := ttl/100 + 2*time.Millisecond
	if c.failsOver {
		d += min(c.maxSkew, ttl/4)
	}
	return d
}

// usable returns how long the holder of a lease with the given TTL uses it.
func (c *config) usable(ttl time.Duration) time.Duration { return ttl - c.drift(ttl) }

// A Backoff is the sequence of pauses between the attempts of one wait: see [WithBackoff]. Each
// wait starts the sequence again. A pause lasts at least 1 ms. When the sequence ends, the wait
// fails with ErrBusy, or with ErrUnavailable if the last attempt was not answered.
type Backoff = iter.Seq[time.Duration]

// Exponential returns a Backoff that begins with a pause of the length first and doubles it up to
// most. With first = most, all pauses have the same length.
func Exponential(first, most time.Duration) Backoff { return calls.Doubling(first, most) }

// Jitter replaces each pause of b by a random pause between half of its length and its full length.
// So waiters that were refused at the same time do not ask again at the same time.
func Jitter(b Backoff) Backoff {
	return calls.Jittered(b)
}

// An Option sets up a Locker of any kind. Options for some kinds of Lockers have types of their
// own, so that a constructor does not compile with an option that it cannot use. To pass a slice of
// Options to a constructor, use [WithOptions].
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
	if !c.queue { // every waiter polls, also behind the callers of its process
		c.handoffs = min(c.handoffs, 1)
	}
	return c, c.validate()
}

// WithReplicaAck counts a lease as granted, renewed or extended only when n replicas have
// acknowledged it before timeout is over. A grant with too few acknowledgements is undone and fails
// with ErrUnavailable; a renewal does not count. So a failover to one of these n replicas loses no
// lease that a holder relies on. But Redis may choose another replica, so let the database check
// the fence.
//
// An acquire or a batch of renewals takes until the replicas have answered, and a grant that came
// by message one more call. timeout must be shorter than the client's ReadTimeout. The client must
// be able to pipeline, as the clients of go-redis are. Default: a grant counts without
// acknowledgements.
func WithReplicaAck(n int, timeout time.Duration) SingleOption {
	return singleOption(func(c *config) { c.acked, c.replicas, c.ackedWithin = true, n, timeout })
}

// WithNodeTimeout sets how long one step on a quorum waits for a node that does not answer, if the
// other nodes have not decided the result. Default: 500 ms. latchkit gives up every call after one
// second, so more than that matters only for subscriptions, and for answers that take several
// calls.
func WithNodeTimeout(d time.Duration) QuorumOption {
	return quorumOption(func(c *config) { c.nodeTimeout = d })
}
