package link

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/calls"
)

// Options are the options of a Links. The zero value is valid.
type Options struct {
	Replicas int           // how many replicas must acknowledge a call with Acked
	Within   time.Duration // how long to wait for the acknowledgements
	Warn     func(error)   // receives the refusals that end a chore
	OfQuorum bool          // the client is for one server of a quorum: see [calls.Chores]
}

// Links has the links of one Locker to all nodes of a client. On one server, a Links has one link.
// On a Cluster, it has one link for each master. Two values of Links share nothing.
type Links struct {
	client  Client
	options Options
	Pool    calls.Pool // the goroutines of the flights, and of what the links do besides; Close waits for them

	single  *link        // the link for all calls; nil: the calls go to the nodes of the Cluster
	cluster Cluster      // nil: there is one server
	nodes   sync.Map     // the nodes of the Cluster: *redis.Client → *link
	chores  calls.Chores // the chores whose key's node is not known yet
	loaded  atomic.Bool  // the client knows the Cluster's state, so asking for a node does not block
	helpers atomic.Int32

	mu      sync.Mutex
	pending []*Call     // the calls that wait until the Cluster's state is loaded
	loading bool        // a goroutine loads the Cluster's state
	overdue *time.Timer // runs when the pending calls must be refused; nil: no call is pending
}

// New returns the links to the nodes of a client. The client must outlive the links. New sends
// nothing.
func New(c Client, o Options) *Links {
	ls := &Links{client: c, options: o, chores: calls.Chores{Warn: o.Warn, One: o.OfQuorum}}
	ls.cluster, _ = c.(Cluster)
	// Only a client of exactly this type is pipelined. The package's comment gives the reason: a
	// client may have its own Process.
	if _, own := c.(*redis.ClusterClient); !own {
		ls.single = newLink(ls, c)
	}
	return ls
}

// Send makes a direct call if it can. A direct call has its answer when Send returns, after at most
// 250 ms. Otherwise Send lists the call, as [Links.Put] does. Send uses the values of ctx, but not
// its end. A caller that does not want to wait any more uses [Call.Leave].
func (ls *Links) Send(ctx context.Context, c *Call) {
	c.markListed(ctx, time.Now())
	if l := ls.linkFor(c); l != nil && !l.tryDirect(c) {
		l.enlist(c)
	}
}

// Put lists the call for the next flight, and does not wait for the answer.
func (ls *Links) Put(ctx context.Context, c *Call) {
	c.markListed(ctx, time.Now())
	if l := ls.linkFor(c); l != nil {
		l.enlist(c)
	}
}

// PutOff lists a call for which no caller waits. The call travels with the next flight or direct
// call to its node. If no flight or direct call begins within 1 ms, the call gets its own flight.
// Until the call is sent, [Call.Recall] can take it back.
func (ls *Links) PutOff(ctx context.Context, c *Call) {
	c.markListed(ctx, time.Now())
	if l := ls.linkFor(c); l != nil {
		l.putOff(c)
	}
}

// Prompt reports whether the node of key gave its last answer within 20 ms, and no flight to the
// node hangs.
func (ls *Links) Prompt(key string) bool {
	l := ls.single
	if l == nil {
		l = ls.servingLink(key)
	}
	return l != nil && l.isPrompt()
}

// Do sends the call and waits for its answer, or for the end of ctx.
func (ls *Links) Do(ctx context.Context, c *Call) (string, error) {
	answered := make(signal, 1)
	c.Receiver = answered
	ls.Send(ctx, c)
	select {
	case <-answered:
		return c.Answer()
	case <-ctx.Done():
		if !c.Leave() {
			return "", ErrLeft
		}
		return "", ctx.Err()
	}
}

// Repeat repeats the attempt of ch, at the node of its key, until the node answers it: see
// [calls.Chores].
func (ls *Links) Repeat(ch calls.Chore) {
	l := ls.single
	if l == nil {
		l = ls.servingLink(ch.Claim.Key)
	}
	for l != nil && !l.addChore(ch) {
		l = ls.servingLink(ch.Claim.Key)
	}
	if l == nil {
		ls.chores.Add(ch)
	}
}

// Close waits until all chores and all goroutines have ended, or until ctx ends. Calls that are
// made after Close are still sent.
func (ls *Links) Close(ctx context.Context) (err error) {
	finish := func(l *link) {
		if stopped := l.chores.Stop(ctx); err == nil {
			err = stopped
		}
	}
	ls.eachLink(finish)
	if stopped := ls.chores.Stop(ctx); err == nil {
		err = stopped
	}
	if stopped := ls.Pool.Stop(ctx); err == nil {
		err = stopped
	}
	ls.eachLink((*link).stopTimers)
	return err
}

func (ls *Links) eachLink(f func(*link)) {
	if ls.single != nil {
		f(ls.single)
	}
	ls.nodes.Range(func(_, l any) bool {
		f(l.(*link))
		return true
	})
}
