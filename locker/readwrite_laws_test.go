package locker_test

import (
	"testing"

	"github.com/latchkit/latchkit/locker"
	"github.com/latchkit/latchkit/locker/lockertest"
)

func TestReadWriteObeysTheLaws(t *testing.T) {
	obeysTheLaws(t, locker.ReadWriteStore, lockertest.All.WithReaders())
}
