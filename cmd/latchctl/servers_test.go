package main

import (
	"testing"

	"github.com/latchkit/latchkit/internal/redistest"
)

// Whoever gives the address of a Sentinel without the name of its master is told what to write.
func TestAnAddressOfASentinelNeedsTheNameOfAMaster(t *testing.T) {
	t.Parallel()
	sentinel := "redis://" + redistest.StartSentinel(t).Addrs()[0]
	for _, command := range [][]string{{"ls"}, {"show", "order:42"}, {"doctor"}} {
		s := exits(t, exitUsage, []string{sentinel}, command...)
		checkContains(t, s.err, "is a Sentinel", "?master_name=")
	}
}
