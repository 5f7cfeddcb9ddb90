package redisstore

import (
	"github.com/redis/go-redis/v9"
)

// FailsOver says whether a client goes on with another server when its own is gone.
func FailsOver(c Client) bool {
	switch c := c.(type) {
	case *redis.ClusterClient:
		return true
	case interface{ Options() *redis.Options }:
		return c.Options().Addr == "FailoverClient" // what go-redis puts there: Sentinel knows the address
	}
	return false
}
