package link

import (
	"context"
	"fmt"
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
	Pool    calls.Pool // the goroutines of the batches, and of what the links do besides; Close waits for them

	single  *link        // the link for all calls; nil: the calls go to the nodes of the Cluster
	cluster Cluster      // nil: there is one server
	nodes   sync.Map     // the nodes of the Cluster: *redis.Client → *link
	chores  calls.Chores // the chores whose key's node is not known yet
	loaded  atomic.Bool  // the client knows the Cluster's state, so asking for a node does not block
	helpers atomic.Int32

	mu      sync.Mutex
	pending []*Call     // the calls that wait until the Cluster's state is loaded
	loading bool        // a goroutine loads the Cluster's state
	failure error       // why the Cluster's state was not loaded
	overdue *time.Timer // runs when the pending calls must be refused; nil: no call is pending
}

// New returns the links to the nodes of a client. The client must outlive the links. New sends
// nothing.
func New(c Client, o Options) *Links {
	ls := &Links{client: c, options: o, chores: calls.Chores{Warn: o.Warn, One: o.OfQuorum}}
	ls.cluster, _ = c.(Cluster)
	// Only a client of exactly this type is pipelined: see the package's comment.
	if _, own := c.(*redis.ClusterClient); !own {
		ls.single = newLink(ls, c)
	}
	return ls
}

// Send makes the call on the caller's goroutine, if few calls are under way and the node answers
// soon: the package's comment says when Send then returns. Otherwise Send does what [Links.Put]
// does. Send uses the values of ctx, but not its end. A caller that does not want to wait any more
// uses [Call.Leave].
func (ls *Links) Send(ctx context.Context, c *Call) {
	c.markListed(ctx, time.Now())
	if l := ls.linkFor(c); l != nil && !l.runAlone(c) {
		l.enlist(c)
	}
}

// Put adds the call to those that wait for the next batch to its node, and does not wait for the
// answer.
func (ls *Links) Put(ctx context.Context, c *Call) {
	c.markListed(ctx, time.Now())
	if l := ls.linkFor(c); l != nil {
		l.enlist(c)
	}
}

// Do sends the call and waits for its answer, or for the end of ctx.
func (ls *Links) Do(ctx context.Context, c *Call) (string, error) {
	answered := make(signal, 1)
	c.Receiver = answered
	ls.Put(ctx, c)
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
	if l == nil {
		ls.chores.Add(ch)
	} else {
		l.chores.Add(ch)
	}
}

// Close waits until all chores and all goroutines have ended, or until ctx ends. Calls that are
// made after Close are still sent.
func (ls *Links) Close(ctx context.Context) (err error) {
	await := func(stop func(context.Context) error) {
		if stopped := stop(ctx); err == nil {
			err = stopped
		}
	}
	ls.eachLink(func(l *link) { await(l.chores.Stop) })
	await(ls.chores.Stop)
	await(ls.Pool.Stop)
	ls.eachLink((*link).stop)
	return err
}

// Failure returns why the last call to the node of key has failed, or nil. It may be an error reply.
// A client may need longer than its caller has to find out, for example, that the node refuses
// connections. So the next callers learn it here.
func (ls *Links) Failure(key string) error {
	l := ls.single
	if l == nil {
		l = ls.servingLink(key)
	}
	if l == nil {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		return ls.failure
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
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
	// No call is sent on while about so many goroutines look for nodes.
	mostHelpers = 8
)

// linkFor returns the link for a call that is to be listed. While the node is unknown, linkFor
// returns nil. Such a call is sent, or refused, when the Cluster's state has been loaded.
func (ls *Links) linkFor(c *Call) *link {
	// The client itself can find the node of a call without a WAIT. A WAIT must use the same
	// connection as its call, so the link must then know the node.
	if ls.single != nil && (ls.cluster == nil || !c.Acked) {
		return ls.single
	}
	if l := ls.servingLink(c.Key); l != nil {
		return l
	}
	ls.keepPending(c)
	return nil
}

// servingLink returns the link to the master of a key, or nil when the client knows no master. It
// does not block.
func (ls *Links) servingLink(key string) *link {
	if !ls.loaded.Load() {
		return nil
	}
	node, err := ls.cluster.MasterForKey(context.Background(), key)
	if err != nil {
		return nil
	}
	return ls.linkTo(node)
}

// linkTo returns the link to the given node, and makes this link if it does not exist.
func (ls *Links) linkTo(node *redis.Client) *link {
	if l, ok := ls.nodes.Load(node); ok {
		return l.(*link)
	}
	// New nodes are rare, so idle links are forgotten only now. A call that has just found such a link
	// is still made.
	ls.nodes.Range(func(node, l any) bool {
		if l.(*link).isIdle() {
			ls.nodes.CompareAndDelete(node, l)
		}
		return true
	})
	l, _ := ls.nodes.LoadOrStore(node, newLink(ls, node))
	return l.(*link)
}

// keepPending keeps the call c until the client knows the Cluster's state. The state is loaded on a
// new goroutine, because the loading may hang. A call is kept no longer than a batch may take.
func (ls *Links) keepPending(c *Call) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.pending = append(ls.pending, c)
	if ls.overdue == nil {
		ls.overdue = time.AfterFunc(answerFor, ls.resolvePending)
	}
	if !ls.loading {
		ls.loading = true
		ls.Pool.Do(ls.loadState)
	}
}

// loadState makes the client load the Cluster's state.
func (ls *Links) loadState() {
	ctx, cancel := context.WithTimeout(context.Background(), answerFor)
	defer cancel()
	_, err := ls.cluster.MasterForKey(ctx, "")
	ls.mu.Lock()
	ls.loading, ls.failure = false, err
	ls.mu.Unlock()
	if err == nil {
		ls.loaded.Store(true)
	}
	ls.resolvePending()
}

// resolvePending sends the calls that have waited for the Cluster's state. If the state is still
// unknown, it refuses them with the cause of the last failure.
func (ls *Links) resolvePending() {
	ls.mu.Lock()
	pending, err := ls.pending, ls.failure
	ls.pending = nil
	if ls.overdue != nil {
		ls.overdue.Stop()
		ls.overdue = nil
	}
	ls.mu.Unlock()
	refusal := ErrNoState
	if err != nil {
		refusal = fmt.Errorf("%w: %w", ErrNoState, err)
	}
	for _, c := range pending {
		if l := ls.servingLink(c.Key); l != nil {
			l.enlist(c)
		} else {
			c.refuse(refusal)
		}
	}
}

// reloadState makes the client load the Cluster's state again. It is called when a node has not
// answered, because another node may now serve the slots of this node.
func (ls *Links) reloadState() {
	if ls.cluster != nil {
		ls.cluster.ReloadState(context.Background())
	}
}

// reroute sends calls to the nodes that now serve their slots. It returns the calls whose slots are
// still served by the node of the link current.
func (ls *Links) reroute(calls []*Call, current *link) []*Call {
	if current == ls.single {
		return calls
	}
	var stay []*Call
	for _, c := range calls {
		if l := ls.servingLink(c.Key); c.hops > 0 || l == nil || l == current {
			stay = append(stay, c)
		} else if c.markRelisted() {
			l.enlist(c)
		}
	}
	return stay
}

// redirect reads err, the error of the call c. If err shows that the call's slot has moved,
// redirect sends the call to the new node and returns true. The method redirect does not block,
// because another goroutine looks for the node.
func (ls *Links) redirect(c *Call, err error) bool {
	if err == nil || ls.cluster == nil || c.hops == mostHops {
		return false
	}
	addr, asking := redis.IsAskError(err)
	if !asking {
		var moved bool
		if addr, moved = redis.IsMovedError(err); !moved {
			if redis.IsClusterDownError(err) || redis.IsReadOnlyError(err) {
				ls.reloadState()
			}
			return false
		}
		ls.reloadState()
	}
	if ls.helpers.Load() >= mostHelpers {
		return false
	}
	if !c.markRelisted() { // false: the caller has left
		return true
	}
	ls.helpers.Add(1)
	c.hops++
	ls.Pool.Do(func() {
		defer ls.helpers.Add(-1)
		node := ls.masterAt(addr)
		if node == nil { // the client does not know the node yet
			c.refuse(err)
			return
		}
		c.asking = asking
		ls.linkTo(node).enlist(c)
	})
	return true
}

// masterAt returns the client of the master at the address addr, or nil when no master has this
// address.
func (ls *Links) masterAt(addr string) *redis.Client {
	ctx, cancel := context.WithTimeout(context.Background(), answerFor)
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
