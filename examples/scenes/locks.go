package main

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/latchkit/latchkit/ginlock"
	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/internal/page"
	"github.com/latchkit/latchkit/locker"
)

// These times hold for both locks, SETNX + DEL and latchkit. One purchase in twenty takes
// longer than the TTL: see paymentTime in shop.go.
const (
	lockTTL  = 300 * time.Millisecond // a lock that is not renewed is free again after this time
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

// noLock lets all buyers in at once. Two buyers may read the same stock, and write the same smaller
// stock. Then one item is sold twice.
func noLock(s *shop) gin.HandlerFunc {
	return func(c *gin.Context) {
		who := nameOf(c.Request.Context(), locker.Rule{})
		s.note(page.Event{Who: who, Kind: page.Stale})
		c.Next()
		s.note(page.Event{Who: who, Kind: page.Free})
	}
}

// setnxDel is the usual first lock. It works until one handler is slower than the TTL.
func setnxDel(s *shop) gin.HandlerFunc {
	return func(c *gin.Context) {
		ctx, key := c.Request.Context(), "{scenes}:naive:"+c.Param("id")
		who := nameOf(ctx, locker.Rule{})
		free := func() { s.note(page.Event{Who: who, Kind: page.Free}) }
		s.note(page.Event{Who: who, Kind: page.Wait})
		for deadline := time.Now().Add(lockWait); ; time.Sleep(50 * time.Millisecond) {
			//show:naive
			ok, err := s.redis.SetNX(ctx, key, "locked", lockTTL).Result()
			//show:end
			if err != nil {
				free()
				c.AbortWithStatus(http.StatusServiceUnavailable)
				return
			}
			if ok {
				break
			}
			if time.Now().After(deadline) {
				free()
				c.Header("Retry-After", "1")
				c.AbortWithStatus(http.StatusConflict)
				return
			}
		}
		s.note(page.Event{Who: who, Kind: page.Hold})
		expired := time.AfterFunc(lockTTL, func() {
			s.note(page.Event{Who: who, Kind: page.Lost, Text: "does not notice that its lock has expired"})
			s.note(page.Event{Who: who, Kind: page.Stale})
		})
		// First mistake: nothing renews the lock. So after lockTTL the next buyer's handler
		// runs at the same time as this handler. Second mistake: this handler does not notice
		// that its lock is gone. It continues, and writes a stock that it has computed from an
		// old value.
		//show:naive
		c.Next()
		//show:end
		expired.Stop()
		free()
		// Third mistake: DEL deletes the lock of any holder. After a slow purchase, DEL deletes
		// the next buyer's lock.
		//show:naive
		s.redis.Del(context.WithoutCancel(ctx), key)
		//show:end
	}
}

// latchkit guards a purchase with one line. ginlock renews the lock while the handler runs. If
// the lock is lost, the handler's context ends. The release never frees another buyer's lock.
func latchkit(s *shop) gin.HandlerFunc {
	//show:latchkit
	return ginlock.MustNew(s.locks, "sku:{param.id|text}", httplock.WithTTL(lockTTL), httplock.WithWait(lockWait))
	//show:end
}
