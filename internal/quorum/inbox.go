package quorum

import (
	"context"
	"sync"

	"github.com/latchkit/latchkit/internal/calls"
	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/store"
)

// hinted is a quorum whose clients can subscribe, so it is a Notifier. It sends hints instead of
// grants, because no single node can grant a key. A hint means that the key may be free and that
// the waiter should ask again. The hint of one node is enough to make the waiter ask. The
// Engine sees the inboxes of all nodes as one inbox.
type hinted struct {
	*quorum
	channel string
}

// Capabilities adds the subscriptions.
func (q hinted) Capabilities() store.Capabilities {
	can := q.quorum.Capabilities()
	can.Notifier = q
	return can
}

// subscription receives the hints of a node: from an inbox, or from the shards of a cluster.
type subscription interface {
	store.Notifier
	Address(key string) string // the address of the channel, even if it is not subscribed
	Polls() string             // why waiters poll; "": they do not
	Watch(report func(store.Warning))
}

// withSubscriptions makes the quorum a Notifier if all clients can subscribe.
func (q *quorum) withSubscriptions(cs []redisstore.Client) store.Store {
	channel := redisstore.NewChannel() // the channel has the same name at all nodes, so that most nodes get the same call
	for i, c := range cs {
		if cluster, ok := c.(redisstore.ClusterClient); ok {
			q.nodes[i].subscription = redisstore.NewShardSubscriptions(cluster)
			continue
		}
		subscriber, ok := c.(redisstore.Subscriber)
		if !ok {
			return q
		}
		q.nodes[i].subscription = redisstore.NewSubscription(subscriber, channel)
	}
	return hinted{q, channel}
}

// inboxOf returns the channel on which the claim c waits at this node, or "" when the claim does
// not queue. The Inbox in the claim only shows whether the claim waits.
func (n *node) inboxOf(c *store.Claim) string {
	if !c.Queue {
		return ""
	}
	return n.channelOf(c)
}

// channelOf returns the channel on which this node notifies the owner of the claim c, or "" when
// there is none.
func (n *node) channelOf(c *store.Claim) string {
	if c.Inbox == "" || n.subscription == nil {
		return ""
	}
	return n.subscription.Address(c.Key)
}

// Listen makes notify receive the events of all nodes, one event at a time.
func (q hinted) Listen(notify func(store.Event)) (stop func()) {
	var one sync.Mutex
	var stops []func()
	for _, n := range q.nodes {
		stops = append(stops, n.subscription.Listen(func(e store.Event) {
			one.Lock()
			defer one.Unlock()
			e.Inbox = "" // the Engine knows only the inbox of the quorum, and not the inbox at each node
			notify(e)
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

// Inbox returns the channel while the process is subscribed at a quorum of nodes, and "" otherwise.
func (q hinted) Inbox(key string) string {
	subscribed := 0
	for _, n := range q.nodes {
		if n.subscription.Inbox(key) != "" {
			subscribed++
		}
	}
	if subscribed < q.need {
		return ""
	}
	return q.channel
}

// Open subscribes on all nodes, and returns when a quorum has confirmed the subscription.
func (q hinted) Open(ctx context.Context, key string) (string, error) {
	f := fanOut(q.quorum, q.allNodes(), nil, async(func(n *node) (string, error) { return n.subscription.Open(ctx, key) }))
	defer f.stop()
	subscribed := 0
	var errs []error
	for subscribed < q.need {
		a, ok := f.next()
		if !ok {
			return "", &store.Refusal{Temporary: true, Err: &quorumError{summary: "fewer than a quorum of the nodes accepted the subscription", nodes: errs}}
		}
		if a.err != nil {
			errs = append(errs, q.nodes[a.node].error(a.err))
		} else {
			subscribed++
		}
	}
	return q.channel, nil
}

// Reset has no effect, because resubscribe handles each node that has no subscriber.
func (q hinted) Reset(string) {}

// resubscribe subscribes again at this node for key. It is called when the node has answered that
// the inbox of this process has no subscriber.
func (n *node) resubscribe(key string) {
	if n.subscription.Inbox(key) != "" {
		n.subscription.Reset(n.subscription.Address(key))
		return
	}
	if n.opening.Swap(true) {
		return
	}
	// The process subscribes at this node now, because this node was down when the process
	// subscribed at the other nodes.
	defer n.opening.Store(false)
	ctx, cancel := context.WithTimeout(n.quorum.background, calls.Timeout)
	defer cancel()
	_, _ = n.subscription.Open(ctx, key) // the node's next answer shows whether it is subscribed
}
