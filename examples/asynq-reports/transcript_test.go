package main

import (
	"bytes"
	"context"
	_ "embed"
	"testing"
	"time"
)

//go:embed transcript.txt
var transcript string

// TestTheTranscriptIsTrue compares the output of the program with transcript.txt.
func TestTheTranscriptIsTrue(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var out bytes.Buffer
	if err := run(ctx, &out, ""); err != nil {
		t.Fatalf("%v, after:\n%s", err, &out)
	}
	if out.String() != transcript {
		t.Errorf("the program prints\n%s\nand the transcript says\n%s\nif that is right now, write it there: go run ./asynq-reports >asynq-reports/transcript.txt", &out, transcript)
	}
}
