package otellock

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// latchkit.quorum.nodes.out counts warnings by their codes, so a quorum must use these codes.
func TestTheCodesOfAQuorumAreTheOnesThatAreCounted(t *testing.T) {
	source, err := os.ReadFile("../internal/quorum/roster.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []string{codeOut, codeReturned} {
		if strings.Count(string(source), ".warn("+strconv.Quote(code)+", ") != 1 {
			t.Errorf("internal/quorum/roster.go does not warn with the code %q", code)
		}
	}
}
