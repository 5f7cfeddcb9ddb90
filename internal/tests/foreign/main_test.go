// Package foreign locks the same keys with latchkit and with other libraries, of Go and of other
// languages. Each library runs in processes of its own.
//
// The clients of other languages are small programs in testdata. `make test-all` installs their lock
// libraries.
package foreign

import (
	"testing"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(proc.Main(m)) }
