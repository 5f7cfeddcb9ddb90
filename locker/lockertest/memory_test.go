package lockertest_test

import (
	"testing"
	"time"

	"github.com/latchkit/latchkit/internal/store"
	"github.com/latchkit/latchkit/internal/store/storetest"
	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestMemoryObeysTheLaws(t *testing.T) {
	storetest.RunInBubble(t, func(*testing.T) storetest.Harness {
		m, can := lockertest.NewMemory(), storetest.All
		can.Readers, can.Permits = true, true
		return storetest.Harness{
			Store:     m,
			Can:       can,
			LoseReply: func(_ testing.TB, op locker.Op, _ string) { m.LoseReplies(op, 1) },
			Occupy:    func(_ testing.TB, key string, ttl time.Duration) { m.Occupy(key, ttl) },
			Another:   func(testing.TB) store.Store { return m.NewProcess() },
			Kill:      func(_ testing.TB, s store.Store) { s.(*lockertest.Process).Die() },
			Deafen: func(_ testing.TB, s store.Store) {
				s.(interface {
					Disturb(f lockertest.EventFaults)
				}).Disturb(lockertest.EventFaults{Deaf: true})
			},
			Queued: func(testing.TB, string) int { return m.Queued() },
		}
	})
}
