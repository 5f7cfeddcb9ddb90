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

func TestAPlotHasABarForEachFigure(t *testing.T) {
	t.Parallel()
	const results = "# What\n\n## P21. Updates of a <key>\n\nText.\n\n" +
		"| contestant | conflicts | updates/s | p99 ms |\n|---|---:|---:|---:|\n| latchkit lock | low | 200 [1–2] | 5 |\n| INCR | high | 100 | 50 |\n\n## P5. More\n"
	svg, err := updatePlot{}.plot(results)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Updates of a &lt;key&gt;", "low: latchkit lock", "high: INCR", "updates per second",
		`width="250" height="20" class="ours"`, `width="125" height="20" class="peer"`, `width="25" height="20" class="ours"`,
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("%s is not in\n%s", want, svg)
		}
	}
	for _, broken := range []string{"# none\n", strings.Replace(results, "p99 ms", "most", 1), strings.Replace(results, "| 5 |", "|", 1)} {
		if _, err := (updatePlot{}).plot(broken); err == nil {
			t.Errorf("no error for\n%s", broken)
		}
	}
}

func TestALatencyPlotHasALineForEachLibrary(t *testing.T) {
	t.Parallel()
	const results = "# What\n\n## P2. Local\n\n| contestant | goroutines | p50 µs |\n|---|---:|---:|\n" +
		"| latchkit | 1 | 100 |\n| latchkit | 256 | 1000 |\n| redsync | 1 | 200 |\n| redsync | 256 | 4000 |\n\n" +
		"## P2R. Far\n\n| line | contestant | goroutines | p50 µs |\n|---|---|---:|---:|\n| 1ms | two pings | 1 | 2000 |\n" +
		"| 1ms | latchkit | 1 | 2000 [1–2] |\n| 5ms | latchkit | 8 | 9000 |\n| 1ms | latchkit | 256 | 6000 |\n"
	svg, err := latencyPlot{}.plot(results)
	if err != nil {
		t.Fatal(err)
	}
	for want, times := range map[string]int{"<polyline": 4, ">redsync<": 1, ">two pings<": 1, ">latchkit<": 2} {
		if n := strings.Count(svg, want); n != times {
			t.Errorf("%s is there %d times, not %d, in\n%s", want, n, times, svg)
		}
	}
	if _, err := (latencyPlot{}).plot(strings.ReplaceAll(results, "p50 µs", "p99 µs")); err == nil {
		t.Error("no error for results without the column")
	}
}
