package quorum

import (
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/latchkit/latchkit/internal/redisstore"
	"github.com/latchkit/latchkit/internal/typednil"
)

// mostNodes is how many nodes fit into a set.
const mostNodes = 31

// CheckClients refuses what cannot be a quorum. What is only found out by asking the servers, the
// nodes find out.
func CheckClients(who string, cs []redisstore.Client) error {
	switch n := len(cs); {
	case n < 3:
		return fmt.Errorf("latchkit: %s: %d clients; give an odd number, at least 3, of independent servers, or use NewSingle for one", who, n)
	case n%2 == 0:
		return fmt.Errorf("latchkit: %s: %d clients; give an odd number: with one less as many servers may fail, with one more one more", who, n)
	case n > mostNodes:
		return fmt.Errorf("latchkit: %s: %d clients; at most %d are supported, and 3 or 5 are enough", who, n, mostNodes)
	}
	addresses := make(map[string]int)
	for i, c := range cs {
		if typednil.Is(c) {
			return fmt.Errorf("latchkit: %s: client %d is nil; give a go-redis v9 client of each server", who, i)
		}
		if _, ok := c.(*redis.Ring); ok {
			return fmt.Errorf("latchkit: %s: client %d is a *redis.Ring, which moves keys to other servers when one is gone; give a client of one server, of a Sentinel set or of a Cluster", who, i)
		}
		for j, other := range cs[:i] {
			if same(c, other) {
				return fmt.Errorf("latchkit: %s: clients %d and %d are the same; each node has one vote, so give each server once", who, j, i)
			}
		}
		addr := addressOf(c)
		if j, taken := addresses[addr]; taken && addr != "" && addr != failover {
			return fmt.Errorf("latchkit: %s: clients %d and %d both lead to %s; each node has one vote, so give each server once", who, j, i, addr)
		}
		addresses[addr] = i
	}
	return nil
}

// failover is what go-redis calls the address of a client that asks Sentinel.
const failover = "FailoverClient"

// addressOf is where a client leads to, "" when it does not say.
func addressOf(c redisstore.Client) string {
	if o, ok := c.(interface{ Options() *redis.Options }); ok {
		return o.Options().Addr
	}
	return ""
}

func same(a, b redisstore.Client) (equal bool) {
	defer func() { _ = recover() }() // of types that cannot be compared
	return a == b
}
