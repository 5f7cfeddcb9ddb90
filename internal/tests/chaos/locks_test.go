package chaos_test

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/polling"
	"github.com/latchkit/latchkit/sqllock"
)

// The kinds of locks.
const (
	kindExclusive  = "exclusive"
	kindReadWrite  = "read-write"
	kindReentrant  = "reentrant"
	kindSemaphore  = "semaphore"
	kindStriped    = "striped"
	kindLead       = "lead"
	kindAcks       = "acknowledged" // by a replica
	kindPolling    = "polling"      // has no fence
	kindScriptless = "scriptless"   // has no fence
)

var kinds = []string{kindExclusive, kindReadWrite, kindReentrant, kindSemaphore, kindStriped, kindLead, kindAcks, kindPolling, kindScriptless}

// The topologies.
const (
	oneServer   = "one server"
	sentinel    = "Sentinel"
	cluster     = "Cluster"
	quorum3     = "quorum of 3"
	quorum5     = "quorum of 5"
	quorumPairs = "quorum of 3 pairs" // each node is a master with a replica
)

var topologies = []string{oneServer, sentinel, cluster, quorum3, quorum5, quorumPairs}

// nodesOf is how many nodes vote in a quorum.
var nodesOf = map[string]int{quorum3: 3, quorum5: 5, quorumPairs: 3}

const (
	roundTTL = 400 * time.Millisecond
	units    = 3 // of a semaphore
)

// quorumWait is how long a node does not vote that may have forgotten its leases: see quorumOptions.
const quorumWait = roundTTL + roundTTL/50 + 102*time.Millisecond

var quorumOptions = []locker.QuorumOption{
	locker.WithTTL(roundTTL), locker.WithMaxTTL(roundTTL),
	locker.WithMaxSkew(50 * time.Millisecond), locker.WithNodeTimeout(100 * time.Millisecond),
}

// dial leads a client's connections through the proxies.
func (o order) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if way, ok := o.Ways[addr]; ok {
		addr = way
	}
	return (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, network, addr)
}

// clients returns the clients of the topology: one of each node of a quorum, or else one.
func (o order) clients() (all []redis.UniversalClient) {
	const pool = 16
	switch o.Topology {
	case sentinel:
		return []redis.UniversalClient{redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: redistest.SentinelName, SentinelAddrs: o.Addrs, Dialer: o.dial, PoolSize: pool, ContextTimeoutEnabled: true,
		})}
	case cluster:
		return []redis.UniversalClient{redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: o.Addrs, Dialer: o.dial, PoolSize: pool, ContextTimeoutEnabled: true,
		})}
	}
	for _, addr := range o.Addrs {
		all = append(all, redis.NewClient(&redis.Options{Addr: addr, Dialer: o.dial, PoolSize: pool, ContextTimeoutEnabled: true}))
	}
	return all
}

// lockers makes the Engine of the order, and the Locker of its kind over it.
func (o order) lockers() (engine *locker.Engine, l locker.Locker, err error) {
	clients := o.clients()
	switch {
	case nodesOf[o.Topology] > 0:
		var nodes []locker.Client
		for _, c := range clients {
			nodes = append(nodes, c)
		}
		engine, err = locker.NewRedlock(nodes, quorumOptions...)
	case o.Kind == kindReadWrite:
		engine, err = locker.NewReadWrite(clients[0])
	case o.Kind == kindSemaphore:
		engine, err = locker.NewSemaphore(clients[0], units)
	case o.Kind == kindAcks:
		engine, err = locker.New(clients[0], locker.WithReplicaAck(1, 100*time.Millisecond))
	case o.Kind == kindPolling:
		engine, err = polling.New(redislock.New(clients[0]))
	case o.Kind == kindScriptless:
		engine, err = locker.NewScriptless(clients[0])
	default:
		engine, err = locker.New(clients[0])
	}
	if err != nil {
		return nil, nil, err
	}
	switch o.Kind {
	case kindReentrant:
		l, err = locker.NewReentrant(engine)
	case kindStriped:
		l, err = locker.NewStriped(engine, 2)
	default:
		l = engine
	}
	return engine, l, err
}

// maxConns is how many connections a process has to the database. A PostgreSQL server has 100 for
// all processes of a round.
const maxConns = 20

// open opens the locks and the database.
func (w *worker) open() error {
	if w.Library == "" {
		engine, l, err := w.lockers()
		if err != nil {
			return err
		}
		w.engine, w.locks = l, &ours{engine, l, w}
	} else {
		peer, err := w.peer()
		if err != nil {
			return err
		}
		w.locks = peer
	}
	if w.Driver == "" {
		return nil
	}
	db, err := sql.Open(w.Driver, w.DSN)
	if err != nil {
		return err
	}
	// A connection for each transaction would cost more than all locks.
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	w.db = db
	if w.Library == "" {
		w.fenced, err = sqllock.New(w.engine, db, sqllock.WithAnswerWithin(3*time.Second))
	}
	return err
}

// sql returns a statement with the placeholders of the driver.
func (w *worker) sql(text string) string { return placeholders(w.Driver, text) }

func placeholders(driver, text string) string {
	if driver != "pgx" {
		return text
	}
	for n := 1; strings.Contains(text, "?"); n++ {
		text = strings.Replace(text, "?", fmt.Sprint("$", n), 1)
	}
	return text
}

// ours are locks of latchkit.
type ours struct {
	engine *locker.Engine
	locker locker.Locker
	w      *worker
}

func (o *ours) acquire(ctx context.Context, rule locker.Rule) (grant, error) {
	lease, err := o.locker.Acquire(ctx, rule)
	if err != nil {
		return grant{}, err
	}
	held := lease.Context()
	if o.w.Kind == kindReentrant {
		o.nest(held, rule, lease)
	}
	return grant{lease.Fence(), held, func() bool { return held.Err() == nil }, lease.Release}, nil
}

// nest takes the lock again under its own context, and releases this inner hold.
func (o *ours) nest(held context.Context, rule locker.Rule, outer *locker.Lease) {
	inner, err := o.locker.Acquire(held, rule)
	if err != nil {
		if held.Err() == nil {
			o.w.wrong("a nested acquire under a living lease: %v", err)
		}
		return
	}
	if inner.Fence() != outer.Fence() {
		o.w.wrong("a nested lease has fence %d, and its outer lease has %d", inner.Fence(), outer.Fence())
	}
	_ = inner.Release(context.WithoutCancel(held))
}

func (o *ours) close(ctx context.Context) error { return o.engine.Close(ctx) }

// errPeerLost says that a lock was lost.
var errPeerLost = errors.New("the lock was lost")

// peer opens the locks of another library as its README shows, with the TTL of the round and
// shorter pauses between tries. Its holders look at what their library tells them about the lock.
func (w *worker) peer() (library, error) {
	switch w.Library {
	case "redislock":
		return &redislocks{redislock.New(w.clients()[0])}, nil
	case "redsync":
		var pools []redsyncredis.Pool
		for _, c := range w.clients() {
			pools = append(pools, goredis.NewPool(c))
		}
		return &redsyncs{redsync.New(pools...)}, nil
	case "rueidislock":
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: w.Addrs, DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return w.dial(ctx, "tcp", addr)
			}},
			KeyMajority: 1, NoLoopTracking: true, KeyValidity: w.TTL, TryNextAfter: time.Second,
		})
		return &rueidislocks{l}, err
	}
	return nil, fmt.Errorf("no library %q", w.Library)
}

// redislocks hold a lock until its TTL is over by their own clock.
type redislocks struct{ client *redislock.Client }

func (r *redislocks) acquire(ctx context.Context, rule locker.Rule) (grant, error) {
	asked := time.Now()
	lock, err := r.client.Obtain(ctx, rule.Key, rule.TTL, &redislock.Options{RetryStrategy: redislock.LinearBackoff(5 * time.Millisecond)})
	if err != nil {
		return grant{}, err
	}
	return grant{0, context.Background(), func() bool { return time.Since(asked) < rule.TTL }, func(ctx context.Context) error {
		if err := lock.Release(ctx); errors.Is(err, redislock.ErrLockNotHeld) {
			return errPeerLost
		} else if err != nil {
			return err
		}
		return nil
	}}, nil
}

func (r *redislocks) close(context.Context) error { return nil }

// redsyncs hold a lock until Mutex.Until.
type redsyncs struct{ sync *redsync.Redsync }

func (r *redsyncs) acquire(ctx context.Context, rule locker.Rule) (grant, error) {
	m := r.sync.NewMutex(rule.Key, redsync.WithExpiry(rule.TTL), redsync.WithTries(200), redsync.WithRetryDelay(10*time.Millisecond))
	if err := m.LockContext(ctx); err != nil {
		return grant{}, err
	}
	return grant{0, context.Background(), func() bool { return time.Now().Before(m.Until()) }, func(ctx context.Context) error {
		if ok, err := m.UnlockContext(ctx); !ok {
			return errors.Join(errPeerLost, err)
		}
		return nil
	}}, nil
}

func (r *redsyncs) close(context.Context) error { return nil }

// rueidislocks hold a lock until its context ends.
type rueidislocks struct{ locker rueidislock.Locker }

func (r *rueidislocks) acquire(ctx context.Context, rule locker.Rule) (grant, error) {
	held, cancel, err := r.locker.WithContext(ctx, rule.Key)
	if err != nil {
		return grant{}, err
	}
	return grant{0, held, func() bool { return held.Err() == nil }, func(context.Context) error {
		err := held.Err()
		cancel()
		if err != nil {
			return errPeerLost
		}
		return nil
	}}, nil
}

func (r *rueidislocks) close(context.Context) error { r.locker.Close(); return nil }
