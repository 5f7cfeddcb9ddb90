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
	lockTTL  = 300 * time.Millisecond // a lock that nobody renews is free again after this
	lockWait = 2 * time.Second        // a buyer who waits longer is sent away with 409 and Retry-After
)

// A way is one way to guard a purchase. The sale is held three times, and the guard in front of the
// handler is all that differs.
type way struct {
	name  string
	guard func(*shop) gin.HandlerFunc
}

var ways = []way{
	{"no lock", noLock},
	{"SETNX + DEL", setnxDel},
	{"latchkit", latchkit},
}

// noLock lets everybody in. Two buyers read the same stock and write the same stock-1: two sales,
// one item.
func noLock(*shop) gin.HandlerFunc {
	return func(c *gin.Context) { c.Next() }
}

// setnxDel is the lock that everybody writes first. It works until one handler is slower than the
// TTL.
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
		// First mistake: nobody renews the lock. After lockTTL the next buyer is let in beside this
		// one. Second mistake: this handler is never told. It goes on and writes a stock that it
		// read long ago.
		c.Next()
		// Third mistake: DEL deletes whatever lock is there, so after a slow purchase it is the
		// next buyer's.
		s.redis.Del(context.WithoutCancel(ctx), key)
	}
}

// latchkit is one line. The lock is renewed while the handler runs; should it be lost all the same,
// the handler's context ends; and giving it up never touches the lock of somebody else.
func latchkit(s *shop) gin.HandlerFunc {
	return ginlock.New(s.locks, "sku:{param.id}", ginlock.WithTTL(lockTTL), ginlock.WithWait(lockWait))
}
