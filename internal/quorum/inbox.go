package quorum

import (
	"context"
	"sync"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/locker/store"
)

// hinted is a quorum whose clients can subscribe, and so a Notifier. It brings no grants, because
// no node can make one, but hints: a key may be free, ask again. Any node's will do. To the Engine
// all inboxes are one.
type hinted struct {
	*quorum
	channel string
}

var _ store.Notifier = hinted{}

// ear is how a node's hints are heard: an inbox, or the shards of a cluster.
type ear interface {
	store.Notifier
	Address(key string) string // of the channel, also while it is not heard
}

// withEars makes hints be heard, if all clients can subscribe.
func (q *quorum) withEars(cs []redisstore.Client) store.Store {
	channel := redisstore.NewChannel() // the same on all of them, so that they can be told the same
	for i, c := range cs {
		switch s := c.(type) {
		case redisstore.ClusterClient:
			q.nodes[i].ear = redisstore.NewShardSubscriptions(s)
		case redisstore.Subscriber:
			q.nodes[i].ear = redisstore.NewSubscription(s, channel)
		default:
			return q
		}
	}
	return hinted{q, channel}
}

// inboxOf is where a claim waits at this node, "" when it does not. Its own inbox only says that it
// does.
func (n *node) inboxOf(c *store.Claim) string {
	if !c.Queue {
		return ""
	}
	return n.channelOf(c)
}

// channelOf is where this node tells a claim something, "" when nowhere.
func (n *node) channelOf(c *store.Claim) string {
	if c.Inbox == "" || n.ear == nil {
		return ""
	}
	return n.ear.Address(c.Key)
}

// Listen makes tell hear what any node says, one at a time.
func (q hinted) Listen(tell func(store.Event)) (stop func()) {
	var one sync.Mutex
	var stops []func()
	for _, n := range q.nodes {
		stops = append(stops, n.ear.Listen(func(e store.Event) {
			one.Lock()
			defer one.Unlock()
			tell(e)
		}))
	}
	return func() {
		var all sync.WaitGroup
		for _, stop := range stops {
			all.Go(stop)
		}
		all.Wait()
	}
}

// Inbox is the channel while a quorum of nodes is heard.
func (q hinted) Inbox(key string) string {
	heard := 0
	for _, n := range q.nodes {
		if n.ear.Inbox(key) != "" {
			heard++
		}
	}
	if heard < q.need {
		return ""
	}
	return q.channel
}

// Open subscribes on all nodes, and returns when a quorum is heard.
func (q hinted) Open(ctx context.Context, key string) (string, error) {
	f := fanOut(q.quorum, q.all(), nil, waiting(func(n *node) (string, error) { return n.ear.Open(ctx, key) }))
	defer f.done()
	heard := 0
	var errs []error
	for heard < q.need {
		a, ok := f.next()
		if !ok {
			return "", &store.Refusal{Temporary: true, Err: &quorumError{what: "too few nodes let us subscribe", nodes: errs}}
		}
		if a.err != nil {
			errs = append(errs, q.nodes[a.node].error(a.err))
		} else {
			heard++
		}
	}
	return q.channel, nil
}

// Reset has nothing to do: each node where nobody listened was seen to when it said so.
func (q hinted) Reset(string) {}

// deaf is called when a node has answered that nobody listens there at our inbox.
func (n *node) deaf(key string) {
	if n.ear.Inbox(key) != "" {
		n.ear.Reset(n.ear.Address(key))
		return
	}
	if n.opening.Swap(true) {
		return
	}
	defer n.opening.Store(false) // the node was down when the process subscribed at the others
	ctx, cancel := context.WithTimeout(n.quorum.background, calls.Timeout)
	defer cancel()
	_, _ = n.ear.Open(ctx, key) // the next answer says whether it worked
}
