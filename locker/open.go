package locker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/polling"
	"github.com/latchkit/latchkit/internal/quorum"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/typednil"
)

// Client is the least that a Locker asks of a Redis client: a *redis.Client is one.
type Client interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// NewSingle returns a Locker on one Redis server (6.2 or newer), on one that Sentinel picks, or on a Redis Cluster: give a
// *redis.Client, one of redis.NewFailoverClient, or a *redis.ClusterClient. A lock is one string key, prefix+key, so other
// libraries that SET NX the same key exclude it and are excluded. On a Cluster a lock lies at one node, and locks are spread
// over all of them.
//
// Where another server may take over, leases that it has not heard of are lost: see [WithReplicaAck], and let the data check
// the fence. Nothing is sent before the first lock. c must outlive the Locker.
func NewSingle(c Client, opts ...SingleOption) (*Engine, error) {
	if err := checkClient("NewSingle", c); err != nil {
		return nil, err
	}
	cfg, err := configure(opts, SingleOption.setSingle)
	if err != nil {
		return nil, err
	}
	cfg.failsOver = cfg.failsOver || redisstore.FailsOver(c)
	store, err := redisstore.New(c, cfg.redis())
	if err != nil {
		return nil, err
	}
	return newEngine(store, cfg), nil
}

// checkClient refuses what leads to no server, or to changing ones.
func checkClient(constructor string, c Client) error {
	if typednil.Is(c) {
		return fmt.Errorf("latchkit: %s: the client is nil; give a *redis.Client or another go-redis v9 client", constructor)
	}
	if _, ok := c.(*redis.Ring); ok {
		return fmt.Errorf("latchkit: %s: a *redis.Ring moves keys to other servers when one is gone, where their locks are unknown; give a client of one server or a *redis.ClusterClient", constructor)
	}
	return nil
}

// NewReadWrite returns a Locker with readers: many may hold a key with [Shared], or one with [Exclusive]. Give one client: of one
// Redis server (6.2 or newer), of one that Sentinel picks, or of a Redis Cluster. Writers look like those of NewSingle, and while readers
// hold, the key is there too, so other libraries and Lockers that want it are excluded.
//
// Phases are fair: after a writer all readers who wait enter together, after them one writer. So a writer waits for the readers
// who are in, and for no newcomers; a reader waits for one writer. Readers of one process with equal TTLs have one lease on the
// server together, so most of them cost no call; it ends with the last of them, or when its process dies and its TTL is
// over, whatever other readers do.
//
// Who reads cannot become a writer, also not in a nested Acquire: that is refused at once with ErrUnsupported, because two such
// callers would wait for each other. [Lease.Downgrade] goes the other way.
//
// With three or more clients, an odd number, of independent servers, more than half of them must agree, as for [NewRedlock],
// whose rules hold, [EnrollRedlock] included. There a writer who waits keeps new readers out, and after a writer all readers who
// wait have a try before the next; but no order is promised, and a process whose writer waits longer than 3 s without asking
// loses that privilege.
//
// Nothing is sent before the first lock. The clients must outlive the Locker.
func NewReadWrite(cs []Client, opts ...ReadWriteOption) (*Engine, error) {
	switch len(cs) {
	case 0:
		return nil, errors.New("latchkit: NewReadWrite: 0 clients; give one, or an odd number, at least 3, of independent servers")
	case 1:
	default:
		return newReadWriteQuorum(cs, opts)
	}
	c := cs[0]
	if err := checkClient("NewReadWrite", c); err != nil {
		return nil, err
	}
	cfg, err := configure(opts, ReadWriteOption.setReadWrite)
	if err != nil {
		return nil, err
	}
	cfg.failsOver = cfg.failsOver || redisstore.FailsOver(c)
	store, err := redisstore.NewReadWrite(c, cfg.redis())
	if err != nil {
		return nil, err
	}
	return newEngine(store, cfg), nil
}

// newReadWriteQuorum is NewReadWrite with several clients.
func newReadWriteQuorum(cs []Client, opts []ReadWriteOption) (*Engine, error) {
	cfg, err := newQuorumConfig("NewReadWrite", cs, opts, ReadWriteOption.setReadWrite)
	if err != nil {
		return nil, err
	}
	if err := cfg.checkForQuorum(); err != nil {
		return nil, err
	}
	return newEngine(quorum.NewReadWrite(nodesOf(cs), cfg.quorum()), cfg), nil
}

// NewRedlock returns a Locker on several independent Redis servers (6.2 or newer), of which more than half must agree: three
// survive the loss of one, five of two. cs is an odd number of clients, at least three, each of a server of its own: not
// of a replica of another one. Each may also be a client of a whole Sentinel set or Redis Cluster.
//
// A node that may have forgotten what it granted (it was restarted, emptied, or replaced by its
// replica) does not vote until every lease of that time is over: as long as the largest
// [WithMaxTTL] in use, which is 1 minute by default. That holds for new servers as well, unless
// [EnrollRedlock] has declared them new. A server that may evict keys does not vote at all.
// [Engine.Nodes] says how the nodes stand. The nodes remember each other: another list of nodes is
// refused, and [ReplaceNode] changes one of them.
//
// The fence grows with every grant whatever the nodes' clocks and delays, as long as nodes that forget stay out. Nothing is
// sent before the first lock. The clients must outlive the Locker.
func NewRedlock(cs []Client, opts ...QuorumOption) (*Engine, error) {
	cfg, err := newQuorumConfig("NewRedlock", cs, opts, QuorumOption.setQuorum)
	if err != nil {
		return nil, err
	}
	return newEngine(quorum.New(nodesOf(cs), cfg.quorum()), cfg), nil
}

// EnrollRedlock declares that the servers of cs are new and hold no leases, so that a Locker need
// not wait before it uses them. Call it once, when they are installed, with the options of the
// Locker; not whenever a service starts: servers of which all were emptied in the meantime have
// forgotten their leases, and nobody would notice. All must answer. Servers that are in use already
// are treated as a Locker treats them: nil when all of them vote, otherwise the error says which
// does not, why, and for how long. A Redis Cluster is enrolled slot by slot, which takes a minute.
//
// The error is [ErrQuorum], with a [NodeError] inside for each server that does not vote. ctx ends
// the work, not what was done.
func EnrollRedlock(ctx context.Context, cs []Client, opts ...QuorumOption) error {
	cfg, err := newQuorumConfig("EnrollRedlock", cs, opts, QuorumOption.setQuorum)
	if err != nil {
		return err
	}
	if err := quorum.Enroll(ctx, nodesOf(cs), cfg.quorum()); err != nil {
		return fmt.Errorf("latchkit: EnrollRedlock: %w", err)
	}
	return nil
}

// ReplaceNode gives the place of one node to another server, while locks are taken. cs is the new
// list: one of its servers is new, and one server of the old list is missing in it, which may be
// up, down or cut off. All others must vote. The missing server is out at once, and leases that
// need its vote are lost in time (ErrLost). The new one votes after votesIn, when no lease that the
// other has granted can last; any process with the new list brings that about. Give all processes
// the new list before or after the call, in any order: those with the old list go on with the other
// nodes. Wait until [Engine.Nodes] says that all vote before the next node is replaced.
//
// A new server at the old one's address needs no call. ctx ends the work, not what was done; the
// call may be repeated.
func ReplaceNode(ctx context.Context, cs []Client, opts ...QuorumOption) (votesIn time.Duration, err error) {
	cfg, err := newQuorumConfig("ReplaceNode", cs, opts, QuorumOption.setQuorum)
	if err != nil {
		return 0, err
	}
	votesIn, err = quorum.Replace(ctx, nodesOf(cs), cfg.quorum())
	if err != nil {
		return 0, fmt.Errorf("latchkit: ReplaceNode: %w", err)
	}
	return votesIn, nil
}

// longestOnQuorums is the longest TTL on a quorum unless WithMaxTTL says otherwise.
const longestOnQuorums = time.Minute

func newQuorumConfig[O comparable](who string, cs []Client, opts []O, set func(O, *config)) (config, error) {
	cfg, err := configure(opts, set)
	if err != nil {
		return cfg, err
	}
	if cfg.maxTTL == 0 {
		cfg.maxTTL = longestOnQuorums
		if err := cfg.validate(); err != nil {
			return cfg, fmt.Errorf("%w (on a quorum WithMaxTTL is %v unless you raise it: a node that may have forgotten its leases stays out for that long)", err, longestOnQuorums)
		}
	}
	if err := quorum.CheckClients(who, nodesOf(cs)); err != nil {
		return cfg, err
	}
	cfg.failsOver = false // the nodes keep a lease for longer, instead of the holder for less
	return cfg, nil
}

// checkForQuorum refuses options for one server, which NewReadWrite takes with one client only.
func (c *config) checkForQuorum() error {
	const who = "NewReadWrite"
	switch {
	case c.renewClient != nil:
		return fmt.Errorf("latchkit: %s: WithRenewClient is a second client of one server, and here there are several; leave it out, and give clients whose pools (PoolSize) have room for renewals", who)
	case c.acked:
		return fmt.Errorf("latchkit: %s: WithReplicaAck is for one server whose replica may take over without knowing of a lease; leave it out, here such a node does not vote until its leases are over", who)
	}
	return nil
}

// NewPolling returns a Locker that locks through a client of bsm/redislock: for services that use redislock already and
// want their waits, renewals and losses taken care of, and for proxies and servers on which nobody can subscribe. Who holds a
// key through redislock itself excludes this Locker, and is excluded.
//
// It can do what redislock's Obtain, Refresh and Release can. There is no queue on the server, so processes that wait ask
// again after the pauses of their Backoff, and no order is kept between them; of the callers in one process only the first asks.
// The fence is 0, which databases cannot check. Rule.Once and Mode Shared are refused with ErrUnsupported, and so are Inspect,
// Revoke and RaiseFence. How long a holder has left is not known, so [Error.RetryAfter] is a guess. An acquire that
// stayed without an answer is cleared as soon as the server answers again. Should the server execute it later still, and
// that answer be lost as well, the key is held by nobody for its TTL.
//
// Give redislock a Redis client with MaxRetries: -1. Otherwise go-redis sends a release again whose
// answer was lost, the second one finds nothing, and a lock that was released in the ordinary way
// is reported as lost (ErrLost). The Engine repeats what was not answered, and knows what that
// means. [Retries] makes a [Backoff] of redislock's RetryStrategies.
func NewPolling(c *redislock.Client, opts ...Option) (*Engine, error) {
	if c == nil {
		return nil, errors.New("latchkit: NewPolling: the client is nil; give one of redislock.New")
	}
	cfg, err := configure(opts, Option.set)
	if err != nil {
		return nil, err
	}
	return newEngine(polling.New(c), cfg), nil
}

// Retries makes a Backoff of a RetryStrategy of redislock. They count, so each wait begins with one of its own:
//
//	locker.WithBackoff(locker.Retries(func() redislock.RetryStrategy {
//		return redislock.LimitRetry(redislock.ExponentialBackoff(16*time.Millisecond, time.Second), 20)
//	}))
func Retries(strategy func() redislock.RetryStrategy) Backoff {
	return func(yield func(time.Duration) bool) {
		for s := strategy(); ; {
			if d := s.NextBackoff(); d < 1 || !yield(d) {
				return
			}
		}
	}
}

// redis is what the options say about a Store on Redis.
func (c *config) redis() redisstore.Settings {
	s := redisstore.Settings{RenewClient: c.renewClient, Warn: c.undoEnded}
	if c.acked {
		s.Acks = redisstore.Acks{Replicas: c.replicas, Within: c.ackedWithin}
	}
	return s
}

// quorum is what the options say about a Store on several servers.
func (c *config) quorum() quorum.Settings {
	return quorum.Settings{MaxSkew: c.maxSkew, MaxTTL: c.maxTTL, NodeTimeout: c.nodeTimeout}
}

// nodesOf is cs for package quorum.
func nodesOf(cs []Client) []redisstore.Client {
	nodes := make([]redisstore.Client, len(cs))
	for i, c := range cs {
		nodes[i] = c
	}
	return nodes
}
