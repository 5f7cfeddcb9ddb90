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
	for _, d := range drawings {
		got, err := os.ReadFile(d.file)
		if !d.isMeasured(string(results)) {
			if err == nil {
				t.Errorf("%s is there, and %s has no row %s", d.file, resultsFile, d.row)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		want, err := d.plot(string(results))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s differs from %s: run `go run -C bench . -plot`", d.file, resultsFile)
		}
	}
}

func TestARowWithSeveralLevelsIsPlotted(t *testing.T) {
	t.Parallel()
	const results = "# What\n\n## P21. Updates\n\n" +
		"| contestant | conflicts | updates/s | p99 ms |\n|---|---:|---:|---:|\n| latchkit lock | low | 200 [1–2] | 5 |\n| INCR | high | 100 | 50 |\n"
	svg, err := drawings[1].plot(results)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"low: latchkit lock", "high: INCR", "updates per second", `width="250" height="20" class="ours"`, `width="125" height="20" class="peer"`} {
		if !strings.Contains(svg, want) {
			t.Errorf("%s is not in\n%s", want, svg)
		}
	}
}

func TestAPlotHasABarForEachFigure(t *testing.T) {
	t.Parallel()
	const results = "# What\n\n## P4. One <key>\n\nText.\n\n" +
		"| contestant | locks/s | max ms |\n|---|---:|---:|\n| latchkit | 200 [1–2] | 5 |\n| other | 100 [1–2] | 50 [4–6] |\n\n## P5. More\n"
	svg, err := drawings[0].plot(results)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"One &lt;key&gt;", `width="250" height="20" class="ours"`, `width="125" height="20" class="peer"`, `width="25" height="20" class="ours"`} {
		if !strings.Contains(svg, want) {
			t.Errorf("%s is not in\n%s", want, svg)
		}
	}
	for _, broken := range []string{"# none\n", strings.Replace(results, "max ms", "most", 1), strings.Replace(results, "| 5 |", "|", 1)} {
		if _, err := drawings[0].plot(broken); err == nil {
			t.Errorf("no error for\n%s", broken)
		}
	}
}
