package otellock

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The metric latchkit.quorum.nodes.out counts only the warnings with two codes, so a quorum must
// use these two codes.
func TestTheCodesOfAQuorumAreTheOnesThatAreCounted(t *testing.T) {
	files, err := filepath.Glob("../internal/quorum/*.go")
	if err != nil {
		t.Fatal(err)
	}
	var source strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(text)
	}
	for _, code := range []string{codeOut, codeReturned} {
		if strings.Count(source.String(), ".warn("+strconv.Quote(code)+", ") != 1 {
			t.Errorf("internal/quorum does not warn with the code %q at one place", code)
		}
	}
}
