package locker

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// NewRedlock returns a Locker on several independent Redis servers (6.2 or newer), of which more than half must agree: three
// survive the loss of one, five of two. cs is an odd number of clients, at least three, each of a server of its own: not
// of a replica of another one. Each may also be a client of a whole Sentinel set or Redis Cluster.
//
// A node that may have forgotten what it granted (it was restarted, emptied, replaced by its replica, or has evicted keys) does not
// vote until every lease of that time is over: as long as the largest [WithMaxTTL] in use, which is 1 minute by default. That holds
// for new servers as well, unless [EnrollRedlock] has declared them new.
//
// The fence grows with every grant whatever the nodes' clocks and delays, as long as nodes that forget stay out. Nothing is
// sent before the first lock. The clients must outlive the Locker.
func NewRedlock(cs []Client, opts ...Option) (*Engine, error) {
	q, cfg, err := newRedlock("NewRedlock", cs, opts)
	if err != nil {
		return nil, err
	}
	return newEngine(q.withEars(cs), cfg), nil
}

// EnrollRedlock declares that the servers of cs are new and hold no leases, so that a Locker need not wait before it uses them.
// A Redis Cluster is enrolled slot by slot, which takes seconds. Call it once, when they are installed, with the options of the Locker; not whenever a service starts: a server that was
// restarted in the meantime has forgotten its leases, and nobody would notice. All must answer. Servers that are in use already
// are left as they are.
//
// The error is ErrQuorum, with a [NodeError] inside for each server that could not be enrolled.
func EnrollRedlock(ctx context.Context, cs []Client, opts ...Option) error {
	q, _, err := newRedlock("EnrollRedlock", cs, opts)
	if err != nil {
		return err
	}
	defer func() { _ = q.settle(ctx) }()
	f := fanOut(q, q.all(), nil, func(n *node) (struct{}, error) { return struct{}{}, n.enrollAll(ctx) })
	defer f.done()
	var errs []error
	for range q.nodes {
		select {
		case a := <-f.answers:
			f.open = f.open.without(a.node)
			if a.err != nil {
				errs = append(errs, q.nodes[a.node].error(a.err))
			}
			continue
		case <-ctx.Done():
		}
		for n := range q.each(f.open) {
			errs = append(errs, n.error(ctx.Err()))
		}
		break
	}
	if len(errs) > 0 {
		return fmt.Errorf("latchkit: EnrollRedlock: %w", &quorumError{what: fmt.Sprintf("%d of %d nodes were not enrolled", len(errs), len(cs)), nodes: errs})
	}
	return nil
}

// mostNodes is how many nodes fit into a set.
const mostNodes = 31

// longestOnQuorums is the longest TTL on a quorum unless WithMaxTTL says otherwise.
const longestOnQuorums = time.Minute

func newRedlock(who string, cs []Client, opts []Option) (*quorum, config, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, cfg, err
	}
	if cfg.maxTTL == 0 {
		cfg.maxTTL = longestOnQuorums
		if err := cfg.validate(); err != nil {
			return nil, cfg, fmt.Errorf("%w (on a quorum WithMaxTTL is %v unless you raise it: a node that may have forgotten its leases stays out for that long)", err, longestOnQuorums)
		}
	}
	if err := cfg.checkForQuorum(who); err != nil {
		return nil, cfg, err
	}
	if err := checkNodes(who, cs); err != nil {
		return nil, cfg, err
	}
	for _, c := range cs {
		cfg.failsOver = cfg.failsOver || failsOver(c)
	}
	return newQuorum(cs, cfg), cfg, nil
}

// checkForQuorum refuses options that speak of one server.
func (c *config) checkForQuorum(who string) error {
	switch {
	case c.renewClient != nil:
		return fmt.Errorf("latchkit: %s: WithRenewClient is a second client of one server, and here there are several; leave it out, and give clients whose pools (PoolSize) have room for renewals", who)
	case c.autoPipeline:
		return fmt.Errorf("latchkit: %s: WithAutoPipeline lets calls to one server travel together; leave it out, each node is called by itself", who)
	case c.acks.asked:
		return fmt.Errorf("latchkit: %s: WithReplicaAck is for one server whose replica may take over without knowing of a lease; leave it out, here such a node does not vote until its leases are over", who)
	}
	return nil
}

// checkNodes refuses what cannot be a quorum. What is only found out by asking the servers, the nodes find out.
func checkNodes(who string, cs []Client) error {
	switch n := len(cs); {
	case n < 3:
		return fmt.Errorf("latchkit: %s: %d clients; give an odd number, at least 3, of independent servers, or use NewSingle for one", who, n)
	case n%2 == 0:
		return fmt.Errorf("latchkit: %s: %d clients; give an odd number: with one less as many servers may fail, with one more one more", who, n)
	case n > mostNodes:
		return fmt.Errorf("latchkit: %s: %d clients; at most %d are supported, and 3 or 5 are enough", who, n, mostNodes)
	}
	addresses := make(map[string]int)
	for i, c := range cs {
		if isNil(c) {
			return fmt.Errorf("latchkit: %s: client %d is nil; give a go-redis v9 client of each server", who, i)
		}
		if _, ok := c.(*redis.Ring); ok {
			return fmt.Errorf("latchkit: %s: client %d is a *redis.Ring, which moves keys to other servers when one is gone; give a client of one server, of a Sentinel set or of a Cluster", who, i)
		}
		for j, other := range cs[:i] {
			if same(c, other) {
				return fmt.Errorf("latchkit: %s: clients %d and %d are the same; each node has one vote, so give each server once", who, j, i)
			}
		}
		addr := addressOf(c)
		if j, taken := addresses[addr]; taken && addr != "" && addr != failover {
			return fmt.Errorf("latchkit: %s: clients %d and %d both lead to %s; each node has one vote, so give each server once", who, j, i, addr)
		}
		addresses[addr] = i
	}
	return nil
}

// failover is what go-redis calls the address of a client that asks Sentinel.
const failover = "FailoverClient"

// addressOf is where a client leads to, "" when it does not say.
func addressOf(c Client) string {
	if o, ok := c.(interface{ Options() *redis.Options }); ok {
		return o.Options().Addr
	}
	return ""
}

func same(a, b Client) (equal bool) {
	defer func() { _ = recover() }() // of types that cannot be compared
	return a == b
}
