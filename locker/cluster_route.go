package locker

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// clusterClient is a client of a Redis Cluster: a *redis.ClusterClient is one.
type clusterClient interface {
	Client
	pipeliner
	MasterForKey(ctx context.Context, key string) (*redis.Client, error)
	ForEachMaster(ctx context.Context, visit func(ctx context.Context, master *redis.Client) error) error
	ReloadState(ctx context.Context)
}

var _ clusterClient = (*redis.ClusterClient)(nil)

// mostRedirects bounds how often a call follows its slot. Then the Engine repeats it, after a pause.
const mostRedirects = 3

// direct makes a call at the node that serves key, and follows the slot when it moves: what a ClusterClient does for
// commands, for what must be sent on one connection.
func direct(ctx context.Context, c clusterClient, key string, call func(node *redis.Client, asking bool) error) error {
	node, err := c.MasterForKey(ctx, key)
	if err != nil {
		return err
	}
	asking := false
	for n := 0; ; n++ {
		err := call(node, asking)
		moved, isMoved := redis.IsMovedError(err)
		ask, isAsk := redis.IsAskError(err)
		if !isMoved && !isAsk || n == mostRedirects {
			return err
		}
		c.ReloadState(ctx)
		if asking = isAsk; asking {
			moved = ask
		}
		if node = masterAt(ctx, c, moved); node == nil {
			return err // a node that this client has not heard of yet; it soon will
		}
	}
}

// masterAt is the client of the master at an address, nil if there is none.
func masterAt(ctx context.Context, c clusterClient, addr string) *redis.Client {
	found := make(chan *redis.Client, 1)
	_ = c.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
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

// movesSlots says whether a script was refused because its slot is on the move: some of its keys may be here and some there.
func movesSlots(err error) bool { return redis.IsTryAgainError(err) }
