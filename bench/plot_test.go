package main

import (
	"os"
	"strings"
	"testing"
)

func TestThePlotIsThatOfTheResults(t *testing.T) {
	t.Parallel()
	results, err := os.ReadFile(resultsFile)
	if err != nil {
		t.Fatal(err)
	}
	want, err := plot(string(results))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(plotFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s differs from %s: run `go run -C bench . -plot`", plotFile, resultsFile)
	}
}

func TestAPlotHasABarForEachFigure(t *testing.T) {
	t.Parallel()
	const results = "# What\n\n## P4. One <key>\n\nText.\n\n" +
		"| contestant | locks/s | max ms |\n|---|---:|---:|\n| latchkit | 200 [1–2] | 5 |\n| other | 100 [1–2] | 50 [4–6] |\n\n## P5. More\n"
	svg, err := plot(results)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"One &lt;key&gt;", `width="250" height="20" class="ours"`, `width="125" height="20" class="peer"`, `width="25" height="20" class="ours"`} {
		if !strings.Contains(svg, want) {
			t.Errorf("%s is not in\n%s", want, svg)
		}
	}
	for _, broken := range []string{"# none\n", strings.Replace(results, "max ms", "most", 1), strings.Replace(results, "| 5 |", "|", 1)} {
		if _, err := plot(broken); err == nil {
			t.Errorf("no error for\n%s", broken)
		}
	}
}
