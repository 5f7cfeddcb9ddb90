package link

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Cluster is a client of a Redis Cluster. A *redis.ClusterClient is a Cluster.
type Cluster interface {
	Client
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ForEachMaster(ctx context.Context, visit func(ctx context.Context, master *redis.Client) error) error
	ReloadState(ctx context.Context)
}

var _ Cluster = (*redis.ClusterClient)(nil)

const (
	// mostHops is the largest number of times that a call is sent on to another node because its
	// slot has moved. After that, the caller repeats the call after a pause.
	mostHops = 3
	// mostHelpers is the largest number of goroutines that look for nodes.
	mostHelpers = 8
)

// find returns the link for a call that is to be listed. While the node is unknown, find returns
// nil. Such a call is sent, or refused, when the Cluster's state has been loaded.
func (ls *Links) find(c *Call) *link {
	// The client itself can find the node. But a WAIT must use the same connection as its call, so
	// the link must know the node.
	if ls.single != nil && (ls.cluster == nil || !c.Acked) {
		return ls.single
	}
	if l := ls.serving(c.Key); l != nil {
		return l
	}
	ls.await(c)
	return nil
}

// serving returns the link to the master of a key, or nil when the client knows no master. It does
// not block.
func (ls *Links) serving(key string) *link {
	if !ls.loaded.Load() {
		return nil
	}
	node, err := ls.cluster.MasterForKey(context.Background(), key)
	if err != nil {
		return nil
	}
	return ls.to(node)
}

// to returns the link to a node.
func (ls *Links) to(node *redis.Client) *link {
	if l, ok := ls.nodes.Load(node); ok {
		return l.(*link) //nolint:forcetypeassert // the map has only links
	}
	ls.nodes.Range(func(node, l any) bool { // new nodes are rare, so idle links are forgotten only now
		if l.(*link).forget() { //nolint:forcetypeassert // as above
			ls.nodes.CompareAndDelete(node, l)
		}
		return true
	})
	l, _ := ls.nodes.LoadOrStore(node, newLink(ls, node))
	return l.(*link) //nolint:forcetypeassert // as above
}

// await keeps a call until the client knows the Cluster's state. The state is loaded on a new
// goroutine, because the loading may hang. A call is kept no longer than a flight may take.
func (ls *Links) await(c *Call) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.pending = append(ls.pending, c)
	if ls.overdue == nil {
		ls.overdue = time.AfterFunc(flightFor, func() { ls.release(ErrNoState) })
	}
	if !ls.loading {
		ls.loading = true
		ls.crew.start(do(ls.load))
	}
}

// load makes the client load the Cluster's state.
func (ls *Links) load() {
	ctx, cancel := context.WithTimeout(context.Background(), flightFor)
	defer cancel()
	_, err := ls.cluster.MasterForKey(ctx, "")
	ls.mu.Lock()
	ls.loading = false
	ls.mu.Unlock()
	if err == nil {
		ls.loaded.Store(true)
	}
	ls.release(err)
}

// release sends the calls that have waited for the Cluster's state, or refuses them.
func (ls *Links) release(err error) {
	ls.mu.Lock()
	pending := ls.pending
	ls.pending = nil
	if ls.overdue != nil {
		ls.overdue.Stop()
		ls.overdue = nil
	}
	ls.mu.Unlock()
	for _, c := range pending {
		if l := ls.serving(c.Key); l != nil {
			l.put(c)
		} else {
			c.refuse(noState{err})
		}
	}
}

// noState returns ErrNoState with the reason.
type noState struct{ why error }

func (e noState) Error() string {
	if e.why == nil || e.why == ErrNoState {
		return ErrNoState.Error()
	}
	return ErrNoState.Error() + ": " + e.why.Error()
}

func (e noState) Unwrap() []error { return []error{ErrNoState, e.why} }

// doubt is called when a node has not answered. Another node may now serve the slots of this node,
// so the client loads the Cluster's state again.
func (ls *Links) doubt() {
	if ls.cluster != nil {
		ls.cluster.ReloadState(context.Background())
	}
}

// elsewhere sends calls to the nodes that now serve their slots. It returns the calls that stay at
// this node.
func (ls *Links) elsewhere(calls []*Call, here *link) []*Call {
	if here == ls.single {
		return calls
	}
	var stay []*Call
	for _, c := range calls {
		if l := ls.serving(c.Key); c.hops > 0 || l == nil || l == here {
			stay = append(stay, c)
		} else if c.relist() {
			l.put(c)
		}
	}
	return stay
}

// redirect looks at the error of a call. If the error shows that the call's slot has moved,
// redirect sends the call to the new node. The method redirect does not block, because another
// goroutine looks for the node.
func (ls *Links) redirect(c *Call, err error) bool {
	if err == nil || ls.cluster == nil || c.hops == mostHops {
		return false
	}
	addr, asking := redis.IsAskError(err)
	if !asking {
		var moved bool
		if addr, moved = redis.IsMovedError(err); !moved {
			if redis.IsClusterDownError(err) || redis.IsReadOnlyError(err) {
				ls.doubt()
			}
			return false
		}
		ls.doubt()
	}
	if ls.helpers.Add(1) > mostHelpers {
		ls.helpers.Add(-1)
		return false
	}
	if !c.relist() { // false: the caller has left
		ls.helpers.Add(-1)
		return true
	}
	c.hops++
	ls.crew.start(do(func() {
		defer ls.helpers.Add(-1)
		node := ls.at(addr)
		if node == nil { // the client does not know the node yet
			c.refuse(err)
			return
		}
		c.asking = asking
		ls.to(node).put(c)
	}))
	return true
}

// at returns the client of the master at an address, or nil when there is no such master.
func (ls *Links) at(addr string) *redis.Client {
	ctx, cancel := context.WithTimeout(context.Background(), flightFor)
	defer cancel()
	found := make(chan *redis.Client, 1)
	_ = ls.cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
		if master.Options().Addr == addr {
			found <- master
		}
		return nil
	})
	select {
	case node := <-found:
		return node
	default:
		return nil
	}
}
