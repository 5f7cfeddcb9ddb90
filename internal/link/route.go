package link

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// Cluster is a client of a Redis Cluster: a *redis.ClusterClient is one.
type Cluster interface {
	Client
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ForEachMaster(ctx context.Context, visit func(ctx context.Context, master *redis.Client) error) error
	ReloadState(ctx context.Context)
}

var _ Cluster = (*redis.ClusterClient)(nil)

const (
	// mostHops bounds how often a call follows its slot. Then its caller repeats it, after a pause.
	mostHops = 3
	// mostHelpers bounds the goroutines that look for nodes.
	mostHelpers = 8
)

// find is the link of a call, which is listed. It is nil when that is not known yet: then the call
// goes out, or is refused, as soon as it is.
func (ls *Links) find(c *Call) *link {
	if ls.single != nil && (ls.cluster == nil || !c.Acked) { // a WAIT must go where its call went
		return ls.single
	}
	if l := ls.serving(c.Key); l != nil {
		return l
	}
	ls.await(c)
	return nil
}

// serving is the link to the master of a key, as far as the client knows one. It does not block.
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

// to is the link to a node.
func (ls *Links) to(node *redis.Client) *link {
	if l, ok := ls.nodes.Load(node); ok {
		return l.(*link) //nolint:forcetypeassert // it holds nothing else
	}
	ls.nodes.Range(func(node, l any) bool { // a new node is rare; those that have left are forgotten then
		if l.(*link).forget() { //nolint:forcetypeassert // as above
			ls.nodes.CompareAndDelete(node, l)
		}
		return true
	})
	l, _ := ls.nodes.LoadOrStore(node, newLink(ls, node))
	return l.(*link) //nolint:forcetypeassert // as above
}

// await keeps a call until the client knows the Cluster's state. Loading it may hang, so that is
// done on a goroutine, and a call is kept for as long as a flight takes at most.
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

// noState is ErrNoState with its reason.
type noState struct{ why error }

func (e noState) Error() string {
	if e.why == nil || e.why == ErrNoState {
		return ErrNoState.Error()
	}
	return ErrNoState.Error() + ": " + e.why.Error()
}

func (e noState) Unwrap() []error { return []error{ErrNoState, e.why} }

// doubt is called when a node has not answered: perhaps another one serves its slots by now.
func (ls *Links) doubt() {
	if ls.cluster != nil {
		ls.cluster.ReloadState(context.Background())
	}
}

// elsewhere sends calls to the nodes that serve their slots by now, and returns those that stay.
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

// redirect sends a call to the node to which its slot has moved, if that is what err says. It does
// not block: whoever looks for the node may have to wait for another one.
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
	if !c.relist() { // its caller has left
		ls.helpers.Add(-1)
		return true
	}
	c.hops++
	ls.crew.start(do(func() {
		defer ls.helpers.Add(-1)
		node := ls.at(addr)
		if node == nil { // one that this client has not been informed of yet; it soon will be
			c.refuse(err)
			return
		}
		c.asking = asking
		ls.to(node).put(c)
	}))
	return true
}

// at is the client of the master at an address, nil if there is none.
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
