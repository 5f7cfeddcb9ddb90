package lockertest_test

import (
	"testing"
	"time"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestMemoryObeysTheLaws(t *testing.T) {
	lockertest.RunInBubble(t, func(*testing.T) lockertest.Harness {
		m, can := lockertest.NewMemory(), lockertest.All
		can.Readers = true
		return lockertest.Harness{
			Store:     m,
			Can:       can,
			LoseReply: func(_ testing.TB, op locker.Op, _ string) { m.LoseReplies(op, 1) },
			Occupy:    func(_ testing.TB, key string, ttl time.Duration) { m.Occupy(key, ttl) },
			Another:   func(testing.TB) locker.Store { return m.NewProcess() },
			Kill:      func(_ testing.TB, s locker.Store) { s.(*lockertest.Process).Die() },
			Deafen:    func(_ testing.TB, s locker.Store) { s.(interface{ Deafen(on bool) }).Deafen(true) },
			Queued:    func(testing.TB, string) int { return m.Queued() },
		}
	})
}
