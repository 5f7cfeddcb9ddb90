// Package redisstore has the Stores on one Redis server, on a server that Sentinel picks, and on a
// Redis Cluster. Each step is a script in folder lua, sent once.
package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/store"
)

// New returns the Store of one server or of a cluster. Each key has one owner at a time. The Store
// is also a Notifier if the client can subscribe.
func New(c Client, cfg Settings) (store.Store, error) { return open(c, cfg, forOne) }

// NewReadWrite does the work of New for a Store with readers.
func NewReadWrite(c Client, cfg Settings) (store.Store, error) { return open(c, cfg, withReaders) }

// NewSemaphore does the work of New for a Store with permits.
func NewSemaphore(c Client, cfg Settings) (store.Store, error) { return open(c, cfg, withPermits) }

// Client has the methods of a client that a Store on Redis needs. A *redis.Client is a Client.
type Client = link.Client

// FailsOver reports whether the client c continues with another server when its server is down.
func FailsOver(c Client) bool {
	switch c := c.(type) {
	case *redis.ClusterClient:
		return true
	case interface{ Options() *redis.Options }:
		// go-redis puts this text in place of the address, because only Sentinel knows the address.
		return c.Options().Addr == "FailoverClient"
	}
	return false
}

// slotMoves reports whether err shows that a script was refused because its slot is moving. While a
// slot moves, some of the script's keys may be on the old node and some on the new node.
func slotMoves(err error) bool { return err != nil && redis.IsTryAgainError(err) }

// Settings are the settings of a Store on Redis.
type Settings struct {
	Acks Acks        // the acknowledgements that each lease needs
	Warn func(error) // called with the refusal that ends an undo; may be nil
}

// kind is what a Store grants besides leases for one owner alone.
type kind uint8

const (
	forOne kind = iota
	// With readers, L has the fence of a phase while readers hold the key. The sorted set R then
	// has an entry with an expiry for each reader.
	withReaders
	// With permits, L shows that the key is taken while permits are held. The sorted set P has an
	// entry with an expiry for each permit, and the hash U has the use of each permit. A claim
	// without a Limit is a claim with Limit 1.
	withPermits
)

// Store has the steps of the Stores on one server and on a Redis Cluster. Each slot of a cluster is
// served as one server would serve the slot. All keys of a lock are in one slot, so the lock's
// scripts run on the node that serves the slot. A Cluster's client finds the node by the first key,
// and follows the slot when it moves.
//
// While a slot moves, its keys are on the old node or on the new one. A node refuses a script that
// names several keys (TRYAGAIN) while one of the keys is not on this node. So a new lease must wait
// until the slot has moved, and so must the renewals of readers and permits. But a lease of one owner
// is renewed and released in steps of one key each, because such a step finds its key on either node.
type Store struct {
	kind    kind
	links   *link.Links
	server  Client
	cluster link.Cluster   // nil: one server
	acks    Acks           // the acknowledgements that leases need
	inbox   *Subscriptions // nil: the client cannot subscribe
	answers sync.Pool      // memory for the answers to the renewals of a batch
	silent  atomic.Bool    // the server refuses scripts that send messages
	sharded atomic.Bool    // the server is a proxy before several shards: it refuses scripts with keys of several slots
}

// Attach returns the Store of one server or of a cluster, without a subscription. The Store sends
// its calls over the given links, which lead to the server of c.
func Attach(c Client, links *link.Links) *Store {
	s := &Store{server: c, links: links, answers: sync.Pool{New: func() any { return new([mostInPart]store.Grant) }}}
	s.cluster, _ = c.(link.Cluster)
	return s
}

// Capabilities returns what a Store of this kind can do besides its steps.
func (s *Store) Capabilities() store.Capabilities {
	can := store.Capabilities{
		Readers: s.kind == withReaders, Permits: s.kind == withPermits,
		// The holder must confirm a grant that came by message if replicas must acknowledge leases,
		// because no replica has acknowledged this grant.
		NeedsConfirmation: s.acks.required(),
		Explain:           s.explain,
		Inspect:           s.Inspect, Keys: s.Keys, Queue: s.Queue, Revoke: s.Revoke, RaiseFence: s.RaiseFence, CheckServer: s.CheckServer,
	}
	if s.inbox != nil {
		can.Notifier, can.Watch = s.inbox, s.inbox.Watch
		can.Nodes = func(context.Context) ([]store.Node, error) {
			return []store.Node{{State: store.NodeVotes, Polls: s.inbox.Polls()}}, nil
		}
	}
	return can
}

// explain returns why the node of key does not serve calls, as far as its last error shows. A refusal
// for good shows it of another call only.
func (s *Store) explain(key string) error {
	err := Refused(s.links.Failure(key))
	if no, ok := errors.AsType[*store.Refusal](err); ok && !no.Temporary && !no.UntilRepaired {
		return nil
	}
	return err
}

func open(c Client, cfg Settings, k kind) (store.Store, error) {
	if err := cfg.Acks.checkClient(c); err != nil {
		return nil, err
	}
	s := Attach(c, link.New(c, link.Options{Replicas: cfg.Acks.Replicas, Within: cfg.Acks.Within, Warn: cfg.Warn}))
	s.kind, s.acks = k, cfg.Acks
	if s.cluster != nil {
		s.inbox = newSubscriptions(clusterSites{s.cluster, rand.Text()})
	} else if sub, ok := c.(Subscriber); ok {
		s.inbox = newSubscriptions(oneServer{sub, inboxPrefix + rand.Text()})
	}
	return s, nil
}

// Acks has the number of replicas that must acknowledge a lease, and the time to wait for them.
// With the zero value, no replica needs to acknowledge a lease.
type Acks struct {
	Replicas int
	Within   time.Duration
}

func (a Acks) required() bool { return a.Replicas > 0 }

// checkClient returns an error if a requires acknowledgements and the client c cannot wait for
// them.
func (a Acks) checkClient(c Client) error {
	if !a.required() {
		return nil
	}
	if _, ok := c.(pipeliner); !ok {
		return fmt.Errorf("latchkit: WithReplicaAck: a %T has no Pipeline; give a *redis.Client or a *redis.ClusterClient", c)
	}
	timeout := time.Duration(0)
	switch c := c.(type) {
	case interface{ Options() *redis.Options }:
		timeout = c.Options().ReadTimeout
	case *redis.ClusterClient:
		timeout = c.Options().ReadTimeout
	}
	if timeout > 0 && a.Within >= timeout {
		return fmt.Errorf("latchkit: WithReplicaAck: the client's ReadTimeout (%v) must be longer than the acknowledgement timeout (%v)", timeout, a.Within)
	}
	return nil
}

// pipeliner is a Client that can send several commands at once, on one connection to each server.
type pipeliner interface {
	Pipeline() redis.Pipeliner
}

// checkCount checks n, the number of replicas that have acknowledged a lease. It returns nil when n
// is large enough, and otherwise the lease's error. The parameter err is the reason why the
// replicas were not counted, for example a failover that ended the WAIT.
func (a Acks) checkCount(n int, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("%w: it is not known whether replicas have acknowledged the lease: %w", store.ErrUnavailable, withAdvice(err))
	case n < a.Replicas:
		return fmt.Errorf("%w: %w: %d of %d within %v; check the server's replicas", store.ErrUnavailable, store.ErrNotReplicated, n, a.Replicas, a.Within)
	}
	return nil
}
