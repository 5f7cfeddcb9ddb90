package quorum

import (
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/link"
	"github.com/latchkit/latchkit/internal/redisstore"
)

// mostNodes is the largest number of nodes of a set.
const mostNodes = 31

// CheckClients returns an error if the clients cs cannot form a quorum. The error names caller, the
// function that got the clients. Problems that only the servers can reveal are found later, by the
// first looks at the nodes.
func CheckClients(caller string, cs []redisstore.Client) error {
	switch n := len(cs); {
	case n < 3:
		return fmt.Errorf("latchkit: %s: %d clients; give clients of an odd number of independent servers, at least 3, or use locker.New for one server", caller, n)
	case n%2 == 0:
		return fmt.Errorf("latchkit: %s: %d clients; give an odd number of clients: %d clients tolerate no more failed servers than %d", caller, n, n, n-1)
	case n > mostNodes:
		return fmt.Errorf("latchkit: %s: %d clients; at most %d are supported, and 3 or 5 are enough", caller, n, mostNodes)
	}
	addresses := make(map[string]int)
	for i, c := range cs {
		if _, ok := c.(*redis.Ring); ok {
			return fmt.Errorf("latchkit: %s: client %d is a *redis.Ring, which moves keys to other servers when one is gone; give a client of one server or of a Sentinel set", caller, i)
		}
		if _, ok := c.(link.Cluster); ok {
			return fmt.Errorf("latchkit: %s: client %d is a client of a Redis Cluster, and a node is one server or a Sentinel set; use locker.New on the Cluster, or give independent servers", caller, i)
		}
		addr := addressOf(c)
		if j, taken := addresses[addr]; taken && addr != "" && addr != failover {
			return fmt.Errorf("latchkit: %s: clients %d and %d both lead to %s; each node has one vote, so give each server once", caller, j, i, addr)
		}
		addresses[addr] = i
	}
	return nil
}

// failover is the address that go-redis shows for a client that asks Sentinel.
const failover = "FailoverClient"

// addressOf returns the address of the server of client c, or "" when the client does not show it.
func addressOf(c redisstore.Client) string {
	if o, ok := c.(interface{ Options() *redis.Options }); ok {
		return o.Options().Addr
	}
	return ""
}
