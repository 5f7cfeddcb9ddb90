package locker_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker"
)

// Many leases are held for a second each. In this second, each lease is renewed three times.
func BenchmarkRenewals(b *testing.B) {
	const leases = 20_000
	l := newSingle(b, redistest.Shared(b).Client(b), locker.WithTTL(time.Second))
	held := make([]*locker.Lease, leases)
	var wg sync.WaitGroup
	for w := range 50 {
		wg.Go(func() {
			for i := w; i < leases; i += 50 {
				var err error
				if held[i], err = l.Acquire(b.Context(), locker.Rule{Key: fmt.Sprint("bench:held:", i), TTL: 3 * time.Second}); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for b.Loop() {
		<-time.After(time.Second)
	}
	for _, lease := range held {
		if lease.Context().Err() != nil {
			b.Error("a lease was lost")
			break
		}
	}
}
