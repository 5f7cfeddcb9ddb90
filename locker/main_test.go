package locker_test

import (
	"flag"
	"fmt"
	"runtime"
	"testing"

	"github.com/latchkit/latchkit/internal/proc"
	"github.com/latchkit/latchkit/internal/redistest"
)

func TestMain(m *testing.M) {
	main := proc.Main(m)
	waitTogether()
	redistest.Main(main)
}

// waitTogether lets more tests run at once than there are processors, unless -parallel says how many: they wait for servers
// and for leases to run out most of the time.
func waitTogether() {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if said {
		return
	}
	if err := flag.Set("test.parallel", fmt.Sprint(3*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
}
