package idempotency_test

import (
	"crypto/rand"
	"testing"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/idempotency/storetest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

func TestMemoryObeysTheRules(t *testing.T) {
	storetest.Run(t, func(*testing.T) idempotency.Store { return idempotency.NewMemory() })
}

func TestRedisObeysTheRules(t *testing.T) {
	storetest.Run(t, func(t *testing.T) idempotency.Store {
		return idempotency.NewRedis(redistest.Shared(t).Client(t), idempotency.WithPrefix(rand.Text()+":"))
	})
}

// open and done are Records of one run.
var (
	open = idempotency.Record{Run: "a run", Open: true}
	done = idempotency.Record{Run: "a run", Answer: []byte("x")}
)
