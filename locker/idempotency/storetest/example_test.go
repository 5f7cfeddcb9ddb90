package storetest_test

import (
	"testing"

	"github.com/latchkit/latchkit/locker/idempotency"
	"github.com/latchkit/latchkit/locker/idempotency/storetest"
)

// The test of a Store runs each rule as a subtest, with a Store of its own.
func Example() {
	var t *testing.T // of func TestMyStoreObeysTheRules(t *testing.T)

	storetest.Run(t, func(*testing.T) idempotency.Store { return idempotency.NewMemory() })
}
