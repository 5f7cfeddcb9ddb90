package locker

import (
	"context"
	"crypto/rand"
	"sync"
)

// hinted is a quorum whose clients can subscribe, and so a Notifier. One channel name, on every node; it brings no grants,
// because no node can make one, but hints: a key may be free, ask again. Any node's will do.
type hinted struct {
	*quorum
	channel string
}

var _ Notifier = hinted{}

// withInboxes gives every node an inbox, if all clients can subscribe.
func (q *quorum) withInboxes(cs []Client) Store {
	channel := inboxChannel + rand.Text()
	for i, c := range cs {
		s, ok := c.(subscriber)
		if !ok {
			return q
		}
		q.nodes[i].inbox = newInboxAt(s, channel)
	}
	return hinted{q, channel}
}

// Listen makes tell hear what any node says, one at a time.
func (q hinted) Listen(tell func(Event)) (stop func()) {
	var one sync.Mutex
	var stops []func()
	for _, n := range q.nodes {
		stops = append(stops, n.inbox.Listen(func(e Event) {
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
		if n.inbox.Inbox(key) != "" {
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
	f := send(q.quorum, q.all(), func(n *node) (string, error) { return n.inbox.Open(ctx, key) })
	defer f.done()
	heard := 0
	var errs []error
	for heard < q.need {
		a, ok := f.next()
		if !ok {
			return "", &Refusal{Temporary: true, Err: &quorumError{what: "too few nodes let us subscribe", nodes: errs}}
		}
		if a.err != nil {
			errs = append(errs, q.nodes[a.node].error(a.err))
		} else {
			heard++
		}
	}
	return q.channel, nil
}

// Reset subscribes afresh wherever the subscription was not found.
func (q hinted) Reset(name string) {
	for _, n := range q.nodes {
		n.inbox.Reset(name)
	}
}

// deaf is called when a node has said that nobody listens there at our inbox.
func (n *node) deaf(inbox string) {
	if n.inbox == nil {
		return
	}
	if n.inbox.Inbox("") != "" {
		n.inbox.Reset(inbox)
		return
	}
	if n.opening.Swap(true) {
		return
	}
	n.quorum.calls.do(func() { // it never was, or the node was down when the others were subscribed to
		defer n.opening.Store(false)
		ctx, cancel := context.WithTimeout(n.quorum.background, callTimeout)
		defer cancel()
		_, _ = n.inbox.Open(ctx, "") // the next answer says whether it worked
	})
}
