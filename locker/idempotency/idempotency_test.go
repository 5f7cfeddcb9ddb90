package idempotency_test

import (
	"crypto/rand"
	"testing"

	"github.com/latchkit/latchkit/internal/redistest"
	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/idempotency/storetest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

var request = [32]byte{1, 2, 255}

func TestMemoryObeysTheRules(t *testing.T) {
	storetest.Run(t, func(*testing.T) idempotency.Store { return idempotency.NewMemory() })
}

func TestRedisObeysTheRules(t *testing.T) {
	storetest.Run(t, func(t *testing.T) idempotency.Store { return onRedis(t) })
}

// onRedis returns an empty Store on the server that all tests share.
func onRedis(t *testing.T) *idempotency.Redis {
	t.Helper()
	return idempotency.NewRedis(redistest.Shared(t).Client(t), idempotency.WithPrefix(rand.Text()+":"))
}

func record(body string) idempotency.Record {
	return idempotency.Record{
		Fingerprint: request, Fence: 7, State: idempotency.Answered,
		Response: idempotency.Response{Status: 201, Body: []byte(body)},
	}
}
