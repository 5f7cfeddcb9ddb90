package redisstore

import (
	"github.com/redis/go-redis/v9"
)

// FailsOver reports whether the client c continues with another server when its server is down.
func FailsOver(c Client) bool {
	switch c := c.(type) {
	case *redis.ClusterClient:
		return true
	case interface{ FailsOver() bool }: // a client of another library
		return c.FailsOver()
	case interface{ Options() *redis.Options }:
		// go-redis puts this text in place of the address, because only Sentinel knows the address.
		return c.Options().Addr == "FailoverClient"
	}
	return false
}
