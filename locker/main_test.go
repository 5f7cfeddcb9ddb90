package locker_test

import (
	"crypto/rand"
	"testing"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
)

func TestMain(m *testing.M) {
	// In FIPS 140 mode, the first random text needs time that passes, and in a bubble of synctest
	// no time passes. Later texts come from the same source.
	_ = rand.Text()
	main := proc.Main(m)
	locktest.RunTogether()
	redistest.Main(main)
}
