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
	ttl    time.Duration
	maxTTL time.Duration
	// maxTTLGiven is false if maxTTL is the default on a quorum.
	maxTTLGiven bool
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

	adaptive    *adaptiveBackoff
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
		handoffs: DefaultHandoffs,
		metadata: func(context.Context) string { return self.Name() },

		maxSkew:     500 * time.Millisecond,
		nodeTimeout: 500 * time.Millisecond,
		refusedAt:   new(atomic.Int64),
	}
}

// complete adjusts options that depend on each other. If options contradict each other, the error
// names the contradiction.
func (c *config) complete() error {
	if !c.queue && c.handoffs > 1 {
		// A Locker without the server's queue has no hand-offs inside a process either, so every
		// waiter polls.
		c.handoffs = 1
	}
	return c.validate()
}

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
	case c.handoffs < 1:
		return fmt.Errorf("latchkit: WithHandoffs(%d); give at least 1, which means no hand-offs inside the process", c.handoffs)
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
// quorum the default is 1 minute, and all processes need the same value. The reason is that a node
// that may have forgotten its leases does not vote until the longest lease is over.
func WithMaxTTL(d time.Duration) Option { return anyOption(func(c *config) { c.maxTTL = d }) }

// WithPrefix puts p in front of every key on the server. Default: none, so the lock "a" is the
// Redis key "a", which other lock libraries see.
func WithPrefix(p string) Option { return anyOption(func(c *config) { c.prefix = p }) }

// WithBackoff sets the pauses between attempts of a waiter that cannot be notified. A waiter
// cannot be notified if a holder of another library has the key, if the waiter's process has no
// subscription, or with [WithoutQueue]. WithBackoff also sets the pauses after calls without an
// answer. A waiter in the queue is notified, and asks again only in case a message was lost.
// Default: 5 ms, doubling up to 100 ms, jittered. If the server has reported when the holder's
// lease can end, a pause lasts at most until 1 ms after that time.
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

// WithAdaptiveBackoff learns the pauses between attempts from the leases with the same Rule.Name in
// this process. It measures how long the leases were held, and how often another attempt
// succeeded. Pauses become longer while most attempts fail, and shorter while most attempts
// succeed, so that about one of two attempts succeeds. Each pause lies between the parameters
// least and most. WithAdaptiveBackoff replaces [WithBackoff]. Both options matter only for a
// waiter that cannot be notified.
func WithAdaptiveBackoff(least, most time.Duration) Option {
	return anyOption(func(c *config) { c.adaptive = &adaptiveBackoff{bounds{least, most}} })
}

// WithAdaptiveTTL chooses the TTL of leases whose Rule has none. While renewals are answered
// promptly, the TTL stays near the value least, so that a crash is detected soon. When renewals are
// answered late, the TTL grows up to the value most. New leases get the learnt TTL. Held
// leases get it at their next renewal. Default: a fixed TTL, see [WithTTL]. Observers receive the
// TTL in [Outcome].
func WithAdaptiveTTL(least, most time.Duration) Option {
	return anyOption(func(c *config) { c.adaptiveTTL = bounds{least, most} })
}

// DefaultHandoffs is the longest streak when [WithHandoffs] sets no other.
const DefaultHandoffs = 64

// WithHandoffs sets n, the largest number of callers in a streak. In a streak, callers of this
// process use one lease, one after the other. After n callers, the lease goes back to the server,
// where other processes wait. Each caller in a streak has a fence of its own. A streak also ends
// after 10 ms. Callers share a lease if their Rules have equal Key, Mode and TTL. In addition,
// their Rules must allow a wait, and must not set KeepFor, EndAfter, OnceFor or Metadata. With n =
// 1 no caller shares a lease: each caller queues at the server by itself. Default:
// [DefaultHandoffs].
func WithHandoffs(n int) Option { return anyOption(func(c *config) { c.handoffs = n }) }

// WithFair makes the order of grants strict: callers of all processes get a key in the order in
// which they began to wait at the server. WithFair equals WithHandoffs(1). By default, processes
// take turns, and each turn is a streak. So callers that began to wait later, in other processes,
// may overtake a caller. A quorum promises no order even with WithFair, because its nodes can
// disagree about which caller waited first.
func WithFair() Option { return WithHandoffs(1) }

// WithoutQueue makes waiters ask again after pauses (see [WithBackoff]), as other libraries do,
// instead of using the server's queue. Use WithoutQueue during a migration, while other
// libraries that only poll want the same keys. With WithoutQueue no order is kept, and no lease
// is handed over inside the process. Use WithoutQueue in all processes that lock these keys,
// because waiters in the queue are served before waiters that poll.
func WithoutQueue() Option { return anyOption(func(c *config) { c.queue = false }) }

// maxMetadataBytes is the largest length of metadata, so that a lease stays small. Longer metadata
// is cut.
const maxMetadataBytes = 256

// WithMetadata writes the text that f returns into the lease, at most 256 bytes. Longer text is
// cut. Inspect and refused callers read this text, so put no secret into it. f is called for
// each acquire, with the context that the Observer's Begin returned, so that f can return the
// identity of a trace. Default: PROGRAM@HOST:PID, at most 64 bytes, where PROGRAM is the
// environment variable OTEL_SERVICE_NAME or the name of the program's file. WithMetadata(nil)
// writes nothing.
func WithMetadata(f func(ctx context.Context) string) Option {
	return anyOption(func(c *config) { c.metadata = f })
}

// WithMaxSkew sets how far the clocks of a master and of the replica that may replace it can
// differ. A lease ends by the server's clock. So after a failover, the lease may end sooner by the
// difference of the two clocks. A holder therefore ends its lease earlier by min(d, TTL/4). On
// Sentinel and on a Cluster the default is 500 ms. On one server, nothing is subtracted
// by default. There, give this option if a hosting service or another tool promotes the server's
// replicas.
//
// On a quorum the default is 500 ms too, but there the nodes keep a lease for 2 × d
// longer. So after a holder dies, its key stays locked longer by 2 × d. A node does not vote if its
// clock differs by more than d from the clocks of the other nodes. A process that sees this
// difference treats the node like a node that has forgotten its leases. Give all processes the same
// d.
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

// A Backoff is the sequence of pauses between the attempts of one wait. The pauses are used if the
// waiter cannot be notified, or while the server gives no answer. Each wait starts the sequence
// again, so one value serves any number of waiters. A pause lasts at least 1 ms. When the sequence
// ends, the wait fails with ErrBusy, or with ErrUnavailable if the last attempt of the wait was not
// answered.
type Backoff = iter.Seq[time.Duration]

// Exponential returns a Backoff that begins with a pause of the length first. Each later pause is
// twice as long as the pause before it, but never longer than most. With first = most, all pauses
// have the same length.
func Exponential(first, most time.Duration) Backoff { return calls.Doubling(first, most) }

// Jitter replaces each pause of b by a random pause between half of its length and its full length.
// So waiters that were refused at the same time do not ask again at the same time.
func Jitter(b Backoff) Backoff {
	return calls.Jittered(b)
}

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
