package main

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
)

// Both locks get the same times. One purchase in twenty takes longer than the TTL, see work in
// shop.go.
const (
	lockTTL  = 300 * time.Millisecond // a lock without renewals is free again after this
	lockWait = 2 * time.Second        // a buyer who waits longer gets 409 with Retry-After
)

// A way is one way to guard a purchase. The three sales differ only in the guard in front of the
// handler.
type way struct {
	name  string
	guard func(*shop) gin.HandlerFunc
}

var ways = []way{
	{"no lock", noLock},
	{"SETNX + DEL", setnxDel},
	{"latchkit", latchkit},
}

// noLock lets all buyers in. Two buyers read the same stock and write the same stock-1: two sales
// of one item.
func noLock(*shop) gin.HandlerFunc {
	return func(c *gin.Context) { c.Next() }
}

// setnxDel is the usual first lock. It works until one handler is slower than the TTL.
func setnxDel(s *shop) gin.HandlerFunc {
	return func(c *gin.Context) {
		ctx, key := c.Request.Context(), "{flashsale}:naive:"+c.Param("id")
		for deadline := time.Now().Add(lockWait); ; time.Sleep(50 * time.Millisecond) {
			ok, err := s.redis.SetNX(ctx, key, "locked", lockTTL).Result()
			if err != nil {
				c.AbortWithStatus(http.StatusServiceUnavailable)
				return
			}
			if ok {
				break
			}
			if time.Now().After(deadline) {
				c.Header("Retry-After", "1")
				c.AbortWithStatus(http.StatusConflict)
				return
			}
		}
		// First mistake: no watchdog renews the lock, so after lockTTL the next buyer enters beside
		// this one. Second mistake: this handler does not learn of the loss. It continues, and
		// writes a stock that it read long ago.
		c.Next()
		// Third mistake: DEL deletes any lock. After a slow purchase this is the lock of the next
		// buyer.
		s.redis.Del(context.WithoutCancel(ctx), key)
	}
}

// latchkit is one line. It renews the lock while the handler runs. If the lock is lost, the
// handler's context ends. The release never frees the lock of another buyer.
func latchkit(s *shop) gin.HandlerFunc {
	return ginlock.New(s.locks, "sku:{param.id}", ginlock.WithTTL(lockTTL), ginlock.WithWait(lockWait))
}
