package main

import (
	"bytes"
	_ "embed"
	"testing"
)

//go:embed transcript.txt
var transcript string

// TestTheTranscriptIsTrue compares the output of the program with transcript.txt.
func TestTheTranscriptIsTrue(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), &out); err != nil {
		t.Fatalf("%v, after:\n%s", err, &out)
	}
	if out.String() != transcript {
		t.Errorf("the program prints\n%s\nand the transcript says\n%s", &out, transcript)
	}
}
