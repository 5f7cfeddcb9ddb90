package main

import (
	"bytes"
	"os"
	"testing"
)

// TestTranscript holds the program to what transcript.txt shows of it.
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
		t.Errorf("it says\n%s\nand not, as in transcript.txt,\n%s", out.Bytes(), want)
	}
}
