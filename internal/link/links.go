package link

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Options are what a Links is made with. The zero value is good.
type Options struct {
	Replicas int           // that must acknowledge a call that is Acked
	Within   time.Duration // and in what time
	Warn     func(error)   // is called with the refusals that end a chore
	One      bool          // it leads to one of several servers: see Chores.One
}

// Links is the ways of one Locker to all nodes that a client leads to: one link, or on a Cluster
// one for each master. Nothing is shared between two Links.
type Links struct {
	client  Client
	options Options
	crew    crew

	single  *link       // all calls go there; nil: to nodes of the Cluster
	cluster Cluster     // nil: there is one server
	nodes   sync.Map    // of the Cluster: *redis.Client → *link
	chores  Chores      // of keys whose node is not known yet
	loaded  atomic.Bool // the client knows the Cluster's state, so asking for a node does not block
	helpers atomic.Int32

	mu      sync.Mutex
	pending []*Call     // until the Cluster's state is known
	loading bool        // a goroutine waits for it
	overdue *time.Timer // refuses what is pending; nil: nothing is
}

// New returns the ways to the nodes of a client, which must outlive them. Nothing is sent yet.
func New(c Client, o Options) *Links {
	ls := &Links{client: c, options: o, chores: Chores{Warn: o.Warn, One: o.One}}
	ls.cluster, _ = c.(Cluster)
	if _, own := c.(*redis.ClusterClient); !own { // by exact type: see the package's comment
		ls.single = newLink(ls, c)
	}
	return ls
}

// Send makes the call, on the goroutine of its caller if it may, so that the answer is there when
// Send returns; otherwise like [Links.Put]. Of ctx only the values count: whoever does not want to
// wait any more uses [Call.Leave]. A call that is made directly ends within 250 ms.
func (ls *Links) Send(ctx context.Context, c *Call) {
	c.hand(ctx, time.Now())
	if ls.single == nil || c.Acked { // on a Cluster the call may wait until a node is known
		c.expect()
	}
	if l := ls.find(c); l != nil && !l.tryDirect(c) {
		c.expect()
		l.put(c)
	}
}

// Put hands the call to the next flight, and does not wait.
func (ls *Links) Put(ctx context.Context, c *Call) {
	c.hand(ctx, time.Now())
	c.expect()
	if l := ls.find(c); l != nil {
		l.put(c)
	}
}

// PutOff hands over a call that nobody waits for. It travels with the next flight or direct call to
// its node; if there is none within 1 ms, it gets a flight. Until then [Call.Recall] takes it back.
func (ls *Links) PutOff(ctx context.Context, c *Call) {
	c.hand(ctx, time.Now())
	c.expect()
	if l := ls.find(c); l != nil {
		l.putOff(c)
	}
}

// Prompt reports whether the node of key has lately answered within 20 ms, and nothing hangs there.
func (ls *Links) Prompt(key string) bool {
	l := ls.single
	if l == nil {
		l = ls.serving(key)
	}
	return l != nil && l.isPrompt()
}

// Do sends the call and waits for its answer, or for the end of ctx.
func (ls *Links) Do(ctx context.Context, c *Call) (string, error) {
	ls.Send(ctx, c)
	select {
	case <-c.done:
		return c.Answer()
	case <-ctx.Done():
		if !c.Leave() {
			return "", ErrLeft
		}
		return "", ctx.Err()
	}
}

// Go runs a job on a goroutine of the Links, for which Close waits.
func (ls *Links) Go(job func()) { ls.crew.start(do(job)) }

// Chore repeats an attempt about key until it is answered: see [Chores].
func (ls *Links) Chore(key string, ch Chore) {
	l := ls.single
	if l == nil {
		l = ls.serving(key)
	}
	for l != nil && !l.add(ch) {
		l = ls.serving(key)
	}
	if l == nil {
		ls.chores.Add(ch)
	}
}

// Close waits until all chores are confirmed and no goroutine is left, at most until ctx ends. What
// is sent after Close is still sent.
func (ls *Links) Close(ctx context.Context) (err error) {
	finish := func(l *link) {
		if stopped := l.chores.Stop(ctx); err == nil {
			err = stopped
		}
	}
	ls.each(finish)
	if stopped := ls.chores.Stop(ctx); err == nil {
		err = stopped
	}
	if stopped := ls.crew.stop(ctx); err == nil {
		err = stopped
	}
	ls.each((*link).end)
	return err
}

func (ls *Links) each(f func(*link)) {
	if ls.single != nil {
		f(ls.single)
	}
	ls.nodes.Range(func(_, l any) bool {
		f(l.(*link)) //nolint:forcetypeassert // it holds nothing else
		return true
	})
}
