package main

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9/logging"
)

var update = flag.Bool("update", false, "write the transcript anew")

// Readers read the transcript instead of running the program, so the program's output must be
// equal to the transcript.
func TestTheTourGoesAsItsTranscriptSays(t *testing.T) {
	logging.Disable()
	var out strings.Builder
	if err := tour(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("transcript.txt", []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("transcript.txt")
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("the tour is\n%s\nand transcript.txt says\n%s\nIf the change is meant: go test -C examples ./sql-transfer -update", out.String(), want)
	}
}
