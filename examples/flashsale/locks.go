package main

import (
	"context"
	"net/http"
	"time"

	"github.com/latchkit/latchkit/httplock"
)

// These times hold for both locks, SETNX + DEL and latchkit. One purchase in twenty takes longer
// than the TTL: see paymentTime in shop.go.
const (
	lockTTL  = 300 * time.Millisecond // a lock that is not renewed is free again after this time
	lockWait = 2 * time.Second        // a buyer who waits longer gets 409 with Retry-After
)

// A way is one way to guard a purchase. The three sales differ only in this middleware.
type way struct {
	name  string
	guard func(*shop) func(purchase http.Handler) http.Handler
	why   string // it oversells
}

var ways = []way{
	{"no lock", noLock, "buyers read the same stock, and wrote the same number"},
	{"SETNX + DEL", setnxDel, "the lock expired during slow payments"},
	{"latchkit", latchkit, "this is a defect of latchkit; please report it"},
}

// noLock lets all buyers in at once. Two buyers may read the same stock, and write the same smaller
// stock. Then one item is sold twice.
func noLock(*shop) func(http.Handler) http.Handler {
	return func(purchase http.Handler) http.Handler { return purchase }
}

// setnxDel is the usual first lock. It works until one purchase is slower than the TTL.
func setnxDel(s *shop) func(http.Handler) http.Handler {
	return func(purchase http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, key := r.Context(), "{flashsale}:naive:"+r.PathValue("id")
			for deadline := time.Now().Add(lockWait); ; time.Sleep(50 * time.Millisecond) {
				ok, err := s.redis.SetNX(ctx, key, "locked", lockTTL).Result()
				if err != nil {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				if ok {
					break
				}
				if time.Now().After(deadline) {
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(http.StatusConflict)
					return
				}
			}
			// First mistake: nothing renews the lock. So after lockTTL the next buyer's purchase
			// runs at the same time as this one. Second mistake: this purchase does not notice
			// that its lock is gone. It continues, and writes a stock that it has computed from
			// an old value.
			purchase.ServeHTTP(w, r)
			// Third mistake: DEL deletes the lock of any holder. After a slow purchase, DEL
			// deletes the next buyer's lock.
			s.redis.Del(context.WithoutCancel(ctx), key)
		})
	}
}

// latchkit guards a purchase with one line. httplock renews the lock while the purchase runs. If
// the lock is lost, the context of the purchase ends. The release never frees another buyer's lock.
func latchkit(s *shop) func(http.Handler) http.Handler {
	return httplock.MustNew(s.locks, "sku:{param.id|text}", httplock.WithTTL(lockTTL), httplock.WithWait(lockWait))
}
