package main

import (
	"os"
	"testing"
)

func TestThePlotIsThatOfTheResults(t *testing.T) {
	t.Parallel()
	results, err := os.ReadFile(resultsFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range pictures {
		got, err := os.ReadFile(d.path())
		if err != nil {
			t.Fatal(err)
		}
		want, err := d.plot(string(results))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s differs from %s: run `go run -C bench . -plot`", d.path(), resultsFile)
		}
	}
}
