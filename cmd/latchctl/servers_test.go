package main

import (
	"strings"
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

// A password with a character that a URL must encode is not printed, not even in part.
func TestNoPartOfAPasswordIsPrinted(t *testing.T) {
	t.Parallel()
	for _, password := range []string{"secret", "s@secret", "s@s/secret", "s/secret", "s#secret", "s?secret"} {
		s := exits(t, exitUsage, []string{"redis://ops:" + password + "@localhost:1/x"}, "ls")
		if checkContains(t, s.err, "--node"); strings.Contains(s.err, "secret") {
			t.Errorf("%s: %s", password, s.err)
		}
	}
}
