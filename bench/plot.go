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
	updateFile  = "../docs/update.svg"
)

// picture is a plot of rows of RESULTS.md.
type picture interface {
	path() string
	plot(results string) (string, error)
}

var pictures = []picture{updatePlot{}, latencyPlot{}}

// writePlots draws rows of RESULTS.md.
func writePlots() error {
	results, err := os.ReadFile(resultsFile)
	if err != nil {
		return err
	}
	for _, p := range pictures {
		svg, err := p.plot(string(results))
		if err != nil {
			return fmt.Errorf("%s: %w", resultsFile, err)
		}
		if err := os.WriteFile(p.path(), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// updatePlot shows P21, with two bars for each line of its table.
type updatePlot struct{}

func (updatePlot) path() string { return updateFile }

// plot returns the plot of results, the text of RESULTS.md, as an SVG.
func (updatePlot) plot(results string) (string, error) {
	title, columns, err := readTable(results, "P21")
	if err != nil {
		return "", err
	}
	conflicts, contestants := columns["conflicts"], columns["contestant"]
	values := [][]string{columns["updates/s"], columns["p99 ms"]}
	if len(conflicts) == 0 || len(contestants) == 0 || len(values[0]) == 0 || len(values[1]) == 0 {
		return "", errors.New("P21 lacks a column")
	}
	const bars, row, top, left, width = 250, 30, 74, 190, 920
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
	text(left, 56, "head", "updates per second (more is better)")
	text(left+bars+110, 56, "head", "99 of 100 take at most, in ms")
	for i, contestant := range contestants {
		y := top + row*i
		class := "peer"
		if strings.Contains(contestant, "latchkit") {
			class = "ours"
		}
		text(left-10, y+16, "name", "%s: %s", conflicts[i], contestant)
		for j, column := range values {
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

// readTable returns the first table below the heading of a row in results: the heading, and the
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
			return "", nil, fmt.Errorf("row %s has a line of %d cells under %d headings", row, len(cells), len(names))
		default:
			for i, cell := range cells {
				columns[names[i]] = append(columns[names[i]], strings.TrimSpace(cell))
			}
		}
	}
	return title, columns, nil
}

// number returns the median in a cell such as "702 [701–706]", or 0 if the cell has no median.
func number(cell string) float64 {
	median, _, _ := strings.Cut(cell, " ")
	value, err := strconv.ParseFloat(median, 64)
	if err != nil {
		return 0
	}
	return value
}
