package locker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/latchkit/latchkit/locker/lockertest"
)

// virtual runs a test of the Engine on the Store in memory. The test runs in a testing/synctest
// bubble, where time passes only while all goroutines wait.
func virtual(t *testing.T, test func(t *testing.T, store *lockertest.Memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, lockertest.NewMemory()) })
}

// checkElapsed fails the test unless d has passed since start on the virtual clock. The parameter
// slack is how much longer or shorter the time may be because of jitter.
func checkElapsed(t *testing.T, start time.Time, d, slack time.Duration) {
	t.Helper()
	if got := time.Since(start); got < d || got > d+slack {
		t.Fatalf("%v passed, want %v to %v", got, d, d+slack)
	}
}
