package link

import (
	"testing"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(proc.Main(m)) }
