package lead_test

import (
	"testing"

	"github.com/latchkit/latchkit/internal/locktest"
	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
)

func TestMain(m *testing.M) {
	main := proc.Main(m)
	locktest.RunTogether()
	redistest.Main(main)
}
