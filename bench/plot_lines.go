package main

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

const latencyFile = "../docs/latency.svg"

// latencyPlot shows the median time of a lock over the number of goroutines, with one line for each
// library: on one machine (P2), and over a network with a round trip of 1 ms (P2R). Both axes are
// logarithmic.
type latencyPlot struct{}

func (latencyPlot) path() string { return latencyFile }

// latencyLine is a contestant of the plot, with its colour.
type latencyLine struct{ contestant, colour string }

var latencyLines = []latencyLine{
	{latchkit, "#0a7d5a"}, {latchkitPlain, "#5cc49f"}, {"redislock 100ms", "#b35900"}, {"redsync", "#7a4fb5"}, {"rueidislock", "#1f6fb2"}, {"two pings", "#9aa4af"},
}

// panel is one of the two halves of the plot.
type panel struct {
	title string
	row   string
	x     int
}

var panels = []panel{
	{"p50 in ms, on one machine", "P2", 60},
	{"p50 in ms, over a network (1 ms)", "P2R", 480},
}

const panelWidth, panelHeight, panelTop = 300, 280, 80

// plot returns the plot of results, the text of RESULTS.md, as an SVG.
func (l latencyPlot) plot(results string) (string, error) {
	var b strings.Builder
	text := func(x, y float64, class, format string, args ...any) {
		fmt.Fprintf(&b, `<text x="%.0f" y="%.0f" class="%s">%s</text>`+"\n", x, y, class, html.EscapeString(fmt.Sprintf(format, args...)))
	}
	const title = "How long a lock takes: acquire and release, a key for each goroutine"
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 410" role="img" aria-label="%s">`+"\n", title)
	b.WriteString("<style>text{font:13px sans-serif;fill:#24292f}.title{font-weight:bold;font-size:15px}.scale{text-anchor:end}" +
		".count{text-anchor:middle}polyline{fill:none;stroke-width:2}.grid{stroke:#e4e7ea}</style>\n")
	b.WriteString(`<rect width="900" height="410" fill="#fff"/>` + "\n")
	text(16, 26, "title", "%s", title)
	for _, p := range panels {
		found := make(map[string][]point)
		low, high := math.Inf(1), 0.0
		for _, l := range latencyLines {
			points, err := p.points(results, l.contestant)
			if err != nil {
				return "", err
			}
			for _, at := range points {
				low, high = min(low, at.micros), max(high, at.micros)
			}
			found[l.contestant] = points
		}
		if high == 0 {
			return "", fmt.Errorf("row %s has no latencies", p.row)
		}
		// The axis has lines at 1, 2 and 5 times each power of ten.
		steps := latencySteps(low, high)
		bottom, top := math.Log10(steps[0]), math.Log10(steps[len(steps)-1])
		y := func(micros float64) float64 {
			return panelTop + panelHeight*(top-math.Log10(micros))/(top-bottom)
		}
		text(float64(p.x), 56, "head", "%s", p.title)
		for _, value := range steps {
			fmt.Fprintf(&b, `<path class="grid" d="M%d %.0fH%d"/>`+"\n", p.x, y(value), p.x+panelWidth)
			text(float64(p.x-6), y(value)+4, "scale", "%g", value/1000)
		}
		for _, goroutines := range crowds {
			text(p.place(goroutines), panelTop+panelHeight+20, "count", "%d", goroutines)
		}
		text(float64(p.x+panelWidth/2), panelTop+panelHeight+40, "count", "goroutines")
		// The names are beside the ends of their lines, from the top, and none covers another.
		lowest := 0.0
		lines := slices.SortedStableFunc(slices.Values(latencyLines), func(a, b latencyLine) int {
			return cmp.Compare(lastOf(found[b.contestant]), lastOf(found[a.contestant]))
		})
		for _, l := range lines {
			points := found[l.contestant]
			if len(points) == 0 {
				continue
			}
			if len(points) == 1 { // a limit, measured once
				points = append(points, points[0])
				points[1].goroutines = crowds[len(crowds)-1]
			}
			fmt.Fprintf(&b, `<polyline stroke="%s" points="`, l.colour)
			for _, at := range points {
				fmt.Fprintf(&b, "%.0f,%.0f ", p.place(at.goroutines), y(at.micros))
			}
			b.WriteString(`"/>` + "\n")
			lowest = max(y(lastOf(points))+4, lowest+14)
			name, _, _ := strings.Cut(l.contestant, " 1")
			fmt.Fprintf(&b, `<text x="%d" y="%.0f" style="fill:%s">%s</text>`+"\n", p.x+panelWidth+6, lowest, l.colour, name)
		}
	}
	b.WriteString("</svg>\n")
	return b.String(), nil
}

// latencySteps returns the heights of the lines of an axis from low to high.
func latencySteps(low, high float64) (steps []float64) {
	for power := math.Pow(10, math.Floor(math.Log10(low))); ; power *= 10 {
		for _, value := range [...]float64{power, 2 * power, 5 * power} {
			if 2.5*value > low {
				steps = append(steps, value)
			}
			if value >= high {
				return steps
			}
		}
	}
}

// lastOf returns the last figure of a line, or 0.
func lastOf(points []point) float64 {
	if len(points) == 0 {
		return 0
	}
	return points[len(points)-1].micros
}

// point is one figure of a line in the plot.
type point struct {
	goroutines int
	micros     float64
}

// points returns the figures of a contestant in results. A limit that does not depend on the number
// of goroutines has one point.
func (p panel) points(results, contestant string) (found []point, err error) {
	_, columns, err := readTable(results, p.row)
	if err != nil {
		return nil, err
	}
	names, counts, micros := columns["contestant"], columns["goroutines"], columns["p50 µs"]
	if len(counts) != len(names) || len(micros) != len(names) {
		return nil, fmt.Errorf("row %s lacks a column", p.row)
	}
	for i, name := range names {
		if name == contestant {
			found = append(found, point{int(number(counts[i])), number(micros[i])})
		}
	}
	if contestant == "two pings" && len(found) > 1 {
		found = found[:1]
	}
	return found, nil
}

// place returns where the number of goroutines is on the axis.
func (p panel) place(goroutines int) float64 {
	return float64(p.x) + panelWidth*math.Log2(float64(goroutines))/math.Log2(float64(crowds[len(crowds)-1]))
}
