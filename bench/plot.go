package main

import (
	"errors"
	"fmt"
	"html"
	"os"
	"strconv"
	"strings"
)

const (
	resultsFile = "RESULTS.md"
	plotFile    = "../docs/one-key.svg"
)

// writePlot draws row P4 of RESULTS.md: the figures of 64 callers of one key.
func writePlot() error {
	results, err := os.ReadFile(resultsFile)
	if err != nil {
		return err
	}
	svg, err := plot(string(results))
	if err != nil {
		return fmt.Errorf("%s: %w", resultsFile, err)
	}
	return os.WriteFile(plotFile, []byte(svg), 0o644)
}

// plot returns an SVG with two bars for each contestant: throughput, and the longest wait.
func plot(results string) (string, error) {
	title, columns, err := readTable(results, "P4")
	if err != nil {
		return "", err
	}
	contestants, throughput, longest := columns["contestant"], columns["locks/s"], columns["max ms"]
	if len(contestants) == 0 || len(throughput) == 0 || len(longest) == 0 {
		return "", errors.New("P4 has no columns contestant, locks/s and max ms")
	}
	const width, left, bars, row, top = 880, 150, 250, 30, 74
	height := top + row*len(contestants) + 16
	var b strings.Builder
	text := func(x, y int, class, format string, args ...any) {
		fmt.Fprintf(&b, `<text x="%d" y="%d" class="%s">%s</text>`+"\n", x, y, class, html.EscapeString(fmt.Sprintf(format, args...)))
	}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n",
		width, height, html.EscapeString(title))
	b.WriteString("<style>text{font:13px sans-serif;fill:#24292f}.title{font-weight:bold;font-size:15px}" +
		".name{text-anchor:end}.ours{fill:#0a7d5a}.peer{fill:#9aa4af}</style>\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	text(16, 26, "title", "%s", title)
	text(left, 56, "head", "locks per second (more is better)")
	text(left+bars+110, 56, "head", "longest wait in ms (less is better)")
	for i, name := range contestants {
		y := top + row*i
		class := "peer"
		if strings.HasPrefix(name, "latchkit") {
			class = "ours"
		}
		text(left-10, y+16, "name", "%s", name)
		for j, column := range [][]string{throughput, longest} {
			value, most := number(column[i]), 0.0
			for _, cell := range column {
				most = max(most, number(cell))
			}
			x := left + j*(bars+110)
			length := max(1, int(value/most*bars))
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="20" class="%s"/>`+"\n", x, y, length, class)
			text(x+length+6, y+16, "value", "%.0f", value)
		}
	}
	b.WriteString("</svg>\n")
	return b.String(), nil
}

// readTable finds the first table below the heading of a row. It returns the heading, and the
// columns by name.
func readTable(results, row string) (title string, columns map[string][]string, err error) {
	_, below, found := strings.Cut(results, "\n## "+row+". ")
	if !found {
		return "", nil, fmt.Errorf("there is no row %s", row)
	}
	title, below, _ = strings.Cut(below, "\n")
	below, _, _ = strings.Cut(below, "\n## ")
	columns = make(map[string][]string)
	var names []string
	for line := range strings.Lines(below) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		switch {
		case names == nil:
			for _, cell := range cells {
				names = append(names, strings.TrimSpace(cell))
			}
		case strings.HasPrefix(cells[0], "---"):
		case len(cells) != len(names):
			return "", nil, fmt.Errorf("row %s has a line of %d cells below %d headings", row, len(cells), len(names))
		default:
			for i, cell := range cells {
				columns[names[i]] = append(columns[names[i]], strings.TrimSpace(cell))
			}
		}
	}
	return title, columns, nil
}

// number reads the median of a cell such as "702 [701–706]"; 0 if there is none.
func number(cell string) float64 {
	median, _, _ := strings.Cut(cell, " ")
	value, err := strconv.ParseFloat(median, 64)
	if err != nil {
		return 0
	}
	return value
}
