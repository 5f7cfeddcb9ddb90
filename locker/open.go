package locker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/latchkit/latchkit/internal/quorum"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/scriptless"
	"github.com/latchkit/latchkit/internal/store"
)

// Client has the methods of a Redis client that a Locker needs. A *redis.Client is a Client.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// A Server says to which Redis [Open] connects: a URL of one server, such as
// "redis://user:password@host:6379/0" or "rediss://…" with TLS, or the options of go-redis for one
// server, a Sentinel set or a Redis Cluster.
type Server interface {
	string | *redis.Options | *redis.FailoverOptions | *redis.ClusterOptions
}

// Open returns a Locker as [New] does, on a client of its own, which [Engine.Close] closes. So a
// lease that is released after Close stays on the server until its TTL is over.
//
// The client has ContextTimeoutEnabled. A ReadTimeout or WriteTimeout that server leaves at 0 is 1
// second, after which the Locker gives a call up anyway; with [WithReplicaAck] it is longer by the
// time for which the server waits. Unless server says otherwise, the client uses no connections of
// its own for pipelines, and asks for no maintenance notifications. The first lock connects.
func Open[S Server](server S, opts ...SingleOption) (*Engine, error) {
	cfg, err := configure(opts, SingleOption.setSingle)
	if err != nil {
		return nil, err
	}
	c, err := dial(server, cfg.ackedWithin)
	if err != nil {
		return nil, err
	}
	e, err := onRedis(c, cfg, redisstore.New)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	e.owned = c
	return e, nil
}

// answerFor is how long the client of Open waits for an answer: as long as the Locker waits for a
// call. With a longer time, the client of a Cluster whose master hangs would serve later again,
// because it asks that master for the state of the Cluster, too.
const answerFor = time.Second

// dial makes the client of Open. The client waits longer for answers by the time acked, for which a
// server waits for its replicas. dial changes no options of its caller.
func dial(server any, acked time.Duration) (redis.UniversalClient, error) {
	switch o := server.(type) {
	case string:
		parsed, err := redis.ParseURL(o)
		if wrong := (*url.Error)(nil); errors.As(err, &wrong) {
			err = wrong.Err // the text of a url.Error has the URL, which may have a password
		}
		if err != nil {
			return nil, fmt.Errorf("latchkit: Open: the URL of the server is wrong; give one such as redis://user:password@host:6379/0: %w", err)
		}
		return dial(parsed, acked)
	case *redis.Options:
		if o != nil {
			own := *o
			own.ContextTimeoutEnabled = true
			own.ReadTimeout, own.WriteTimeout = cmp.Or(own.ReadTimeout, answerFor+acked), cmp.Or(own.WriteTimeout, answerFor)
			own.MaintNotificationsConfig = cmp.Or(own.MaintNotificationsConfig, noNotices())
			own.PipelinePoolSize = cmp.Or(own.PipelinePoolSize, onePool)
			return redis.NewClient(&own), nil
		}
	case *redis.FailoverOptions:
		if o != nil {
			own := *o
			own.ContextTimeoutEnabled = true
			own.ReadTimeout, own.WriteTimeout = cmp.Or(own.ReadTimeout, answerFor+acked), cmp.Or(own.WriteTimeout, answerFor)
			own.PipelinePoolSize = cmp.Or(own.PipelinePoolSize, onePool)
			// A dial asks all Sentinels, and dials them again and again by itself. With repetitions on
			// both sides it takes longer than any call, so nobody would learn that they are down.
			own.DialerRetries = cmp.Or(own.DialerRetries, 1)
			return redis.NewFailoverClient(&own), nil
		}
	case *redis.ClusterOptions:
		if o != nil {
			own := *o
			own.Addrs = slices.Clone(own.Addrs) // go-redis appends to them, also into the caller's array
			own.ContextTimeoutEnabled = true
			own.ReadTimeout, own.WriteTimeout = cmp.Or(own.ReadTimeout, answerFor+acked), cmp.Or(own.WriteTimeout, answerFor)
			own.MaintNotificationsConfig = cmp.Or(own.MaintNotificationsConfig, noNotices())
			own.PipelinePoolSize = cmp.Or(own.PipelinePoolSize, onePool)
			return redis.NewClusterClient(&own), nil
		}
	}
	return nil, errors.New("latchkit: Open: the options are nil; give a URL such as redis://localhost:6379, or options of go-redis")
}

// onePool makes go-redis use the same connections for pipelines as for single calls. So a process
// with few locks needs few connections, and when its server becomes slow, fewer calls wait for the
// set-up of a connection.
const onePool = -1

// noNotices returns the options of a client that asks for no maintenance notifications. Asking
// would cost each process one more round trip before its first lock.
func noNotices() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// New returns a Locker on one Redis server (6.2 or newer), on the master of a Sentinel set, or on a
// Redis Cluster. Give a *redis.Client, a client of redis.NewFailoverClient, or a
// *redis.ClusterClient. A lock is one string key, prefix+key, so it and the locks of other
// libraries that take this key with SET NX exclude each other. If another server takes over, leases
// that it does not know are lost: see [WithReplicaAck], and let the database check the fence.
// Nothing is sent before the first lock is taken. Close c only after the Locker.
//
// Whoever calls this Locker is back within 250 ms of the end of its ctx if c has
// ContextTimeoutEnabled. With a client without it, a call that was under way when its server or its
// connection stopped answering is back when go-redis gives it up: its time-outs for pool, dial,
// write and read are 5 s each by default. This concerns Acquire, and the release of [Run] and
// Lease.Release; Drain and Close wait for such a release until their own ctx ends. Such a call
// holds up no renewal and no caller of another key.
func New(c Client, opts ...SingleOption) (*Engine, error) {
	return newOnRedis("New", c, opts, 0, redisstore.New)
}

// newOnRedis returns the Locker of a constructor for one server, a Sentinel set or a Cluster. limit
// is the number of units of a semaphore; 0: the Locker is no semaphore.
func newOnRedis(constructor string, c Client, opts []SingleOption, limit int, makeStore func(redisstore.Client, redisstore.Settings) (store.Store, error)) (*Engine, error) {
	if err := checkClient(constructor, c); err != nil {
		return nil, err
	}
	cfg, err := configure(opts, SingleOption.setSingle)
	if err != nil {
		return nil, err
	}
	cfg.limit = limit
	return onRedis(c, cfg, makeStore)
}

// onRedis returns the Locker with the configuration cfg on the Store that makeStore makes.
func onRedis(c Client, cfg config, makeStore func(redisstore.Client, redisstore.Settings) (store.Store, error)) (*Engine, error) {
	cfg.failsOver = cfg.failsOver || redisstore.FailsOver(c)
	s, err := makeStore(c, cfg.redis())
	if err != nil {
		return nil, err
	}
	return newEngine(s, cfg), nil
}

// checkClient refuses a nil client c, and a client that moves keys between servers. The error names
// the constructor.
func checkClient(constructor string, c Client) error {
	if isNil(c) {
		return fmt.Errorf("latchkit: %s: the client is nil; give a *redis.Client or another go-redis v9 client", constructor)
	}
	if _, ok := c.(*redis.Ring); ok {
		return fmt.Errorf("latchkit: %s: a *redis.Ring moves keys to other servers when one is down, and those servers do not know the locks; give a client of one server or a *redis.ClusterClient", constructor)
	}
	return nil
}

// NewReadWrite returns a Locker with readers, on the servers that [New] admits: a key is held by
// many callers with [Shared], or by one caller with [Exclusive]. A writer's lease is stored as with
// New. While readers hold the key, the key exists on the server too, so other libraries and Lockers
// are excluded.
//
// Phases are fair. After a writer, all waiting readers enter together; after the readers, one
// writer. So a writer waits only for the readers that have entered before it began to wait, and a
// waiting reader waits for at most one writer. Readers of one process with equal TTLs share one
// lease on the server, which the last of them releases, so most of them cost no call.
//
// A reader cannot become a writer: a nested Acquire that tries it is refused with ErrUnsupported,
// because two such callers would wait for each other. A writer that only wants to read on releases
// its lease, and acquires the key with [Shared]. As with all Lockers, a nested Acquire of the
// writer's own key is refused with ErrSelfDeadlock, also with Shared; through [NewReentrant] it
// gets a nested hold. There are no readers on several independent servers.
func NewReadWrite(c Client, opts ...SingleOption) (*Engine, error) {
	return newOnRedis("NewReadWrite", c, opts, 0, redisstore.NewReadWrite)
}

// NewSemaphore returns a Locker with which all processes together hold at most n leases of a key,
// on the servers that [New] admits. Each lease is a permit, with its own TTL, renewal and place in
// the queue. Waiters of one process may use its permits in turn before a waiter of another process
// that came earlier, and before a heavier waiter. With [WithFair], permits are granted strictly in
// the order of the queue.
//
// The server does not store n. Each acquire carries n, so there is nothing to set up or to resize.
// [Rule.Limit] sets another n for a key. The smallest n among the held leases counts, so no holder
// ever shares the key with more holders than its own n allows. With n = 1 the Locker is an
// exclusive lock. Locks of other Lockers and of other libraries on the same key exclude all
// permits.
//
// Each permit has a unique fence, but several permits are valid at the same time, so a database
// cannot refuse a holder by its fence, and sqllock returns ErrUnsupported. [Rule.KeepFor] keeps the
// units for that time, so at most n leases begin in any period of that length. A nested Acquire
// takes more units; if the caller's own leave too few, the error is ErrSelfDeadlock. If all holders
// call Acquire again, each waits for the others for ever, so set a Wait for nested Acquires.
//
// Several independent servers cannot count permits; take n locks of [NewRedlock] instead.
func NewSemaphore(c Client, n int, opts ...SingleOption) (*Engine, error) {
	if n < 1 || n > mostUnits {
		return nil, fmt.Errorf("latchkit: NewSemaphore: n is %d; give how many leases of a key may be held at once, 1 to %d", n, mostUnits)
	}
	return newOnRedis("NewSemaphore", c, opts, n, redisstore.NewSemaphore)
}

// NewRedlock returns a Locker on several independent Redis servers (6.2 or newer), of which more
// than half must agree. cs is an odd number of clients, at least three. Each client needs a server
// of its own, and no server may be a replica of another client's server. A client may also be the
// client of a whole Sentinel set, but not of a Redis Cluster.
//
// A node that was restarted, emptied, or replaced by its replica may have forgotten its grants.
// Such a node notices it by itself, and does not vote until every lease that it may have forgotten
// is over: for [WithMaxTTL] (1 minute by default) and 2 % more, by its own clock. New servers wait
// as well, unless [EnrollRedlock] has declared them new. A server that may evict keys does not vote
// at all. [Engine.Nodes] shows the state of the nodes. Give WithMaxTTL the same value, and the same
// number of clients, in all processes: a node refuses other values. docs/quorum.md says how to
// change them, and how to replace a server.
//
// The fence grows with every grant, whatever the nodes' clocks and delays, as long as nodes that
// have forgotten leases do not vote. Only a fence that was raised above the clocks can be
// forgotten: see [Engine.RaiseFence]. There is no queue on a quorum, and no message wakes a waiter:
// one caller of each process polls, with pauses of 1 ms to 50 ms.
func NewRedlock(cs []Client, opts ...QuorumOption) (*Engine, error) {
	cfg, err := newQuorumConfig("NewRedlock", cs, opts)
	if err != nil {
		return nil, err
	}
	return newEngine(quorum.New(nodesOf(cs), cfg.quorum()), cfg), nil
}

// EnrollRedlock declares that the servers of cs are new and hold no leases, so that a Locker can
// use them without a wait. Call it once, when the servers are installed, with the options of the
// Locker, and not at each start of a service: it would hide that the servers have lost their data.
// All servers must answer, a slow one within 5 s, and it refuses unless each of them has no lease and
// was never a node.
//
// If all servers are nodes that vote, and [WithMaxTTL] has another value than before, EnrollRedlock
// changes it at all nodes. From then on processes with the old value are refused. No node may
// restart until these processes have ended and their longest lease is over.
//
// The error is [ErrQuorum], with a [NodeError] inside for each server that is to blame. The end of
// ctx ends the call, but steps that it has taken are not undone.
func EnrollRedlock(ctx context.Context, cs []Client, opts ...QuorumOption) error {
	cfg, err := newQuorumConfig("EnrollRedlock", cs, opts)
	if err != nil {
		return err
	}
	if err := quorum.Enroll(ctx, nodesOf(cs), cfg.quorum()); err != nil {
		return fmt.Errorf("latchkit: EnrollRedlock: %w", err)
	}
	return nil
}

// longestOnQuorums is the default of WithMaxTTL on a quorum.
const longestOnQuorums = time.Minute

// newQuorumConfig returns the config of a Locker on the servers of cs. constructor is the name for
// errors.
func newQuorumConfig(constructor string, cs []Client, opts []QuorumOption) (config, error) {
	// No message wakes a waiter, so waiters ask more often than in a queue.
	opts = append([]QuorumOption{WithBackoff(Jitter(Exponential(time.Millisecond, 50*time.Millisecond)))}, opts...)
	cfg, err := configure(opts, QuorumOption.setQuorum)
	if err != nil {
		return cfg, err
	}
	if cfg.maxTTLGiven = cfg.maxTTL != 0; !cfg.maxTTLGiven {
		cfg.maxTTL = longestOnQuorums
		if err := cfg.validate(); err != nil {
			return cfg, fmt.Errorf("%w (on a quorum, the default of WithMaxTTL is %v: a node that may have forgotten its leases does not vote for that time)", err, longestOnQuorums)
		}
	}
	for i, c := range cs {
		if isNil(c) {
			return cfg, fmt.Errorf("latchkit: %s: client %d is nil; give a go-redis v9 client of each server", constructor, i)
		}
	}
	if err := quorum.CheckClients(constructor, nodesOf(cs)); err != nil {
		return cfg, err
	}
	cfg.failsOver = false // on a quorum the nodes keep a lease longer, and the holder may use all of its TTL
	return cfg, nil
}

// NewScriptless returns a Locker for servers that forbid scripts (EVAL), such as some hosted
// servers and proxies. It takes a lease with SET NX PX, and renews and releases it with WATCH,
// MULTI and EXEC on one connection, so that it never touches the lease of another holder. c is a
// client of one server, a client of redis.NewFailoverClient, or a *redis.ClusterClient.
//
// Where scripts are allowed, New is better in all respects. Without scripts the server has no
// queue: waiting processes ask again after pauses (see [WithBackoff]), in no order; of the callers
// in one process, only the first does. The fence is 0, so databases cannot check it. An acquire
// takes one round trip, a renewal or a release three; Redis 8.4 and Valkey 9 and newer release in
// one. Mode Shared is refused with ErrUnsupported, and so are Revoke and RaiseFence. Rule.KeepFor,
// Rule.OnceFor and Inspect work. A server older than Redis 7.2 refuses transactions while its
// memory is full, so leases on that server are lost (ErrLost).
//
// The server must allow SET, GET, PTTL, PEXPIRE, EXISTS, DEL, WATCH, UNWATCH, MULTI and EXEC, on
// the keys and on latchkit:*, and may allow DELEX or DELIFEQ. An acquire uses neither WATCH nor
// PEXPIRE nor DEL: on a server that forbids one of these, a key stays locked for its TTL after Run,
// and Run returns no error for it. To find this out, try Lease.Release once on a new server. This
// Locker and the other kinds treat each other's leases like leases of another library, so they
// exclude each other.
func NewScriptless(c redis.UniversalClient, opts ...Option) (*Engine, error) {
	if err := checkClient("NewScriptless", c); err != nil {
		return nil, err
	}
	cfg, err := configure(opts, Option.set)
	if err != nil {
		return nil, err
	}
	cfg.failsOver = cfg.failsOver || redisstore.FailsOver(c)
	return newEngine(scriptless.New(c), cfg), nil
}

// redis returns the settings for a Store on Redis.
func (c *config) redis() redisstore.Settings {
	s := redisstore.Settings{Warn: c.undoEnded}
	if c.acked {
		s.Acks = redisstore.Acks{Replicas: c.replicas, Within: c.ackedWithin}
	}
	return s
}

// quorum returns the settings for a Store on several servers.
func (c *config) quorum() quorum.Settings {
	return quorum.Settings{MaxSkew: c.maxSkew, MaxTTL: c.maxTTL, MaxTTLGiven: c.maxTTLGiven, NodeTimeout: c.nodeTimeout, Warn: c.undoEnded}
}

// nodesOf converts cs for package quorum.
func nodesOf(cs []Client) []redisstore.Client {
	nodes := make([]redisstore.Client, len(cs))
	for i, c := range cs {
		nodes[i] = c
	}
	return nodes
}
