package main

import (
	"bytes"
	"os"
	"testing"
)

// TestTranscript checks that the output of the program is equal to transcript.txt.
func TestTranscript(t *testing.T) {
	want, err := os.ReadFile("transcript.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), &out, ""); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("the output is\n%s\nwant, from transcript.txt,\n%s", out.Bytes(), want)
	}
}
