package locker_test

import (
	"testing"

	"github.com/latchkit/latchkit/locker"
)

func TestReadWriteObeysTheLaws(t *testing.T) {
	t.Parallel()
	obeysTheLaws(t, locker.ReadWriteStore)
}
